"""The first-token check passes independent draws in any container, and finds copies, seeds and greedy draws."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from labkit.checks import first_token

V, T = 14, 6


def draw(n, length=T, vocab=V):
    return torch.randint(0, vocab, (n, length))


def with_first(first):
    """Rows with these first tokens, made of those that were drawn."""

    def generate(n):
        tokens = draw(n)
        tokens[:, 0] = first(tokens[:, 0].clone())
        return tokens

    return generate


# Right ------------------------------------------------------------------------------------------------------


def ragged(n):
    return [row[: 2 + i % 3].tolist() for i, row in enumerate(draw(n))]


RIGHT = {
    "tensor": draw,
    "ragged": ragged,
    "list of tensors": lambda n: list(draw(n)),
    "tuple with masks": lambda n: (draw(n).tolist(), [[1] * T] * n),
    "object": lambda n: SimpleNamespace(sequences=draw(n)),
    "numpy": lambda n: draw(n).numpy(),
    "one prompt first": lambda n: draw(n)[None],
    "first tokens only": lambda n: draw(n)[:, 0],
    "some rows empty": lambda n: [[] if i == 3 else row for i, row in enumerate(draw(n).tolist())],
    "seeded inside": lambda n: torch.randint(0, V, (n, T), generator=torch.Generator().manual_seed(42)),
    "two tokens": lambda n: torch.multinomial(torch.tensor([0.9, 0.1]), n, replacement=True)[:, None],
    "all end alike": lambda n: torch.cat([draw(n, 2), torch.full((n, 4), 7)], 1),
}


@pytest.mark.parametrize("generate", RIGHT.values(), ids=RIGHT)
def test_independent_draws_pass_in_any_container(generate):
    report = first_token(generate)
    assert report, report


def test_a_prompt_in_front_is_dropped():
    prompt = torch.tensor([0, 0, 3, 1, 4])
    with_prompt = lambda n: torch.cat([prompt.expand(n, -1), draw(n)], dim=1)
    assert first_token(with_prompt, prompt_length=5)
    report = first_token(with_prompt)
    assert report.passed is None and "prompt_length=5" in report.hint


# Wrong ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generate", "cause"),
    [
        (with_first(lambda first: first[0]), "drawn once and copied. Likely the prefill runs at batch 1"),
        (with_first(lambda first: first[::4].repeat_interleave(4)), "come in 4 equal ones"),
        (with_first(lambda first: first[:8].repeat(2)), "come in 2 equal ones"),
        (lambda n: torch.full((n, T), 5), "Every row of every call is the same. Likely greedy"),
        (lambda n: draw(1).expand(n, -1), "one completion is copied to all rows"),
        (lambda n: torch.multinomial(torch.ones(20), n)[:, None], "without replacement"),
        (lambda n: draw(n - 1), "must return 16 rows"),
        (lambda n: draw(n)[:, :0], "No row has a token"),
        (lambda n: torch.rand(n, T), "not whole numbers"),
    ],
)
def test_each_mistake_fails_with_its_own_cause(generate, cause):
    report = first_token(generate)
    assert report.passed is False and cause in report.hint, report


def seeded_in_every_call(n):  # as nanochat's engine.generate(seed=42) does
    tokens = torch.randint(0, V, (n, T), generator=torch.Generator().manual_seed(42))
    tokens[:, 0] = tokens[0, 0]
    return tokens


def test_what_never_varies_is_inconclusive_and_a_seed_inside_is_named():
    report = first_token(seeded_in_every_call)
    assert report.passed is None and "The first token never varies" in report.hint, report
    assert "a seed is set inside" in report.hint and report.seen["calls_alike"], report


# At the border ----------------------------------------------------------------------------------------------


def sampler(weights, shared=1, seed=0, length=T):
    """First tokens from `weights`, `shared(n)` of them copies of one draw in random places; the rest is open."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.tensor(weights, dtype=torch.float)

    def generate(n):
        tokens = torch.randint(0, V, (n, length), generator=generator)
        tokens[:, 0] = torch.multinomial(weights, n, replacement=True, generator=generator)
        copies = shared(n) if callable(shared) else shared
        places = torch.randperm(n, generator=generator)[:copies]
        tokens[places, 0] = tokens[places[0], 0].clone()
        return tokens

    return generate


all_but_one, half = (lambda n: n - 1), (lambda n: n // 2)
OPEN = [0.41, 0.39, 0.15, 0.03, 0.02]  # about the lab's policy on "16+01="


KINDS = {"open": [1] * V, "wide": [1] * 50_000, "labs": OPEN, "two": [1, 1], "sure": [9, 1], "surer": [97, 3]}


@pytest.mark.parametrize("weights", [KINDS["open"], KINDS["wide"], OPEN], ids=["open", "wide", "labs"])
def test_copies_to_all_rows_but_one_are_refused_and_to_half_of_them_never_pass_without_a_caution(weights):
    for seed in range(5):
        report = first_token(sampler(weights, all_but_one, seed), calls=8)
        assert report.passed is False and "at least 15 of 16 rows have the same first token" in report.hint, report
        report = first_token(sampler(weights, half, seed), calls=16)
        assert not report or "shared by a part of the rows" in report.caution, report


@pytest.mark.parametrize(("n", "calls"), [(16, 1), (16, 4), (2, 2)])
def test_sound_draws_are_never_accused(n, calls):
    for weights, seed in itertools.product(KINDS.values(), range(10)):
        report = first_token(sampler(weights, seed=seed), num_samples=n, calls=calls)
        assert report.passed is not False, report


def test_a_nearly_greedy_policy_is_inconclusive_and_so_is_a_copier_of_it():
    for shared, seed in itertools.product((1, all_but_one), range(3)):
        report = first_token(sampler([999, 1], shared, seed), num_samples=8)
        assert report.passed is None and report.word == "INCONCLUSIVE", report
        assert "nearly sure" in report.hint or "never varies" in report.hint, report


def test_too_few_samples_are_inconclusive():
    agree = itertools.cycle([3, 5, 7])
    report = first_token(lambda n: [[next(agree)] * 1] * n, num_samples=2, calls=2)  # two rows, equal twice
    assert report.passed is None and "2 of 2 rows have the same first token" in report.hint, report
    once = first_token(sampler([1, 1], half), calls=1)
    assert once.passed is None and "more calls" in once.hint, once


def test_an_open_prompt_passes_without_a_caution_and_two_symbols_with_one():
    assert not first_token(draw).caution
    report = first_token(sampler([1, 1]))
    assert report and "shared by a part of the rows" in report.caution


@pytest.mark.parametrize(("n", "calls", "vocab"), [(256, 4, 500), (4, 300, 14)])
def test_many_rows_and_many_calls_are_counted_without_an_overflow(n, calls, vocab):
    assert first_token(sampler([1] * vocab, length=2), num_samples=n, calls=calls)
    report = first_token(sampler([1] * vocab, all_but_one, length=2), num_samples=n, calls=calls)
    assert report.passed is False and "one draw is copied to" in report.hint, report


def test_it_asks_for_as_many_rows_and_calls_as_it_says():
    asked = []

    def generate(n):
        asked.append(n)
        return draw(n)

    assert first_token(generate, num_samples=5, calls=3)
    assert asked == [5, 5, 5]
    for settings in ({"num_samples": 1}, {"calls": 0}, {"prompt_length": -1}):
        with pytest.raises(ValueError, match="num_samples >= 2"):
            first_token(draw, **settings)


def of_two_prompts(order):
    """First tokens of two prompts, 0 to 4 and 3 to 7, in an order of rows."""

    def generate(n):
        rows = torch.stack([torch.randint(0, 5, (n,)), torch.randint(3, 8, (n,))])
        tokens = rows.flatten() if order == "adjacent" else rows.t().flatten()
        return torch.cat([tokens[:, None], draw(2 * n)], 1)

    return generate


def test_rows_of_several_prompts_must_be_next_to_each_other():
    assert first_token(of_two_prompts("adjacent"), prompts=2)
    report = first_token(of_two_prompts("strided"), prompts=2)
    assert report.passed is False and "repeat_interleave" in report.hint
    alike = first_token(lambda n: draw(2 * n), prompts=2)
    assert alike and "does not show" in alike.caution
    copied = first_token(lambda n: draw(2).repeat_interleave(n, 0), prompts=2)
    assert copied.passed is False and copied.hint.startswith("Prompt 1")


def test_a_copied_first_token_of_a_sure_policy_is_not_said_to_be_a_copied_completion():
    report = first_token(lambda n: torch.cat([draw(1)[:, :1].expand(n, 1), torch.ones(n, 3).long()], 1))
    assert report.passed is False and "its first token is" in report.hint
