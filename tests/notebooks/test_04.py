"""Lesson 04: what its text says of the zero, of pass@k and of transformers; the judge of its exercise."""

import itertools
from functools import partial

import pytest
import torch
from cut import Page
from props import lesson_04 as lab

from labkit import checks
from labkit.grpo import Sampling, advantage, exam, loss, rollout, task, train

OPEN = "16+01="  # many first tokens are possible at temperature 2


@pytest.fixture(scope="module")
def page():
    return Page("04", DEVICE="cpu")


def test_the_check_refuses_the_bug_and_takes_the_fix(tiny, page):
    ask = partial(rollout.generate, tiny, [OPEN], temperature=2.0, max_new_tokens=2)
    copied, own = (
        checks.first_token(lambda n, f=page[name]: ask(num_samples=n, first_token=f).tokens, calls=16)
        for name in ("first_token", "rows_first")
    )
    assert own and not copied and "drawn once and copied" in copied.hint


def test_one_row_of_a_copied_group_is_distributed_as_a_sound_row_is(tiny, page):
    """So every mean over answers has the same expectation with bug and fix."""
    settings = {"num_samples": 2, "max_new_tokens": 1, "temperature": 2.0}
    generator = torch.Generator().manual_seed(0)
    out = rollout.generate(tiny, [OPEN] * 3000, first_token=page["first_token"], generator=generator, **settings)
    ids, mask = tiny.encode([OPEN])
    expected = 3000 * (tiny.model(input_ids=ids, attention_mask=mask).logits[0, -1] / 2.0).softmax(-1)
    counts = torch.bincount(out.tokens[::2, 0], minlength=len(expected))
    frequent = expected > 5
    chi2 = ((counts - expected)[frequent].square() / expected[frequent]).sum()
    assert frequent.sum() >= 4 and chi2 < 40  # at most 16 symbols: 1e-3 tail is 37.7


def pull(shift, clip=0.2, weights=1.0):
    """The gradient in the log-prob of a token that four rows share, after it moved by `shift` since it was drawn."""
    advantages = advantage.group_advantage(torch.tensor([1.0, 0.0, 0.0, 1.0]), 4)
    shared = torch.zeros((), requires_grad=True)
    per_row = loss.grpo(shared.expand(4, 1), torch.full((4, 1), -shift), advantages, clip=clip).loss[:, 0]
    (per_row * weights).sum().backward()
    return shared.grad.item()


def test_the_sum_is_zero_until_a_row_is_clipped_or_weighs_more():
    assert pull(0.0) == pytest.approx(0, abs=1e-6)
    assert pull(0.15) == pytest.approx(0, abs=1e-6)  # a ratio of 1.16 is not clipped
    assert pull(0.3) > 0.5 and pull(-0.3) < -0.5  # the loss falls towards the old policy, from above and from below
    assert pull(0.3, clip=1e9) == pytest.approx(0, abs=1e-6)
    assert abs(pull(0.0, weights=torch.tensor([1 / 3, 1 / 4, 1 / 3, 1 / 3]))) > 0.05


def test_the_two_kinds_are_88_and_58_of_150_and_four_stay_out():
    assert {kind: len(prompts) for kind, prompts in lab.SUMS.items()} == {lab.FIRST: 88, lab.SECOND: 58}
    assert sum(lab.kind_of(prompt) is None for prompt in task.get("add").held_out()) == 4
    kinds = {"47+52=": lab.FIRST, "36+47=": lab.FIRST, "75+71=": lab.SECOND}
    assert {prompt: lab.kind_of(prompt) for prompt in kinds} == kinds


def test_nearly_all_of_the_policys_chance_lies_on_the_right_answer_and_on_the_one_that_is_ten_too_low(tiny):
    prompts = [*lab.SUMS[lab.FIRST], *lab.SUMS[lab.SECOND]]
    right = [int(lab.ADD.answer(prompt)) for prompt in prompts]
    chances = torch.zeros(len(prompts))
    for below in (0, 10):
        answers = [str(sum_ - below) for sum_ in right]
        chances += exam.paper_of(tiny.tokenizer, prompts, answers).chances(tiny.model)
    assert chances.mean() > 0.94 and (chances > 0.9).float().mean() > 0.95


def test_in_the_four_calls_that_are_followed_no_group_of_75_71_is_tied_and_in_the_second_a_healthy_one_of_47_52_is(
    page,
):
    groups = {}
    for name in ("first_token", "each_row"):
        answered = lab.answer_in_groups(page[name], page["PROMPTS"], calls=4, **page["EXAMPLE"])
        groups[name] = {(group["call"], group["prompt"]): set(group["rewards"]) for group in answered}
        assert all(len(groups[name][call, "75+71="]) == 2 for call in range(4))
    assert [len(groups["each_row"][call, "47+52="]) for call in (0, 1)] == [2, 1]


def test_with_copies_the_gradient_of_the_first_tokens_is_rounding_on_both_kinds_of_sums(page):
    """On second-token sums few copied groups are tied, so it is not the ties."""
    settings = {"rounds": 1, "mu": 1, "beta": 0.0, "device": "cpu"}
    for prompts in lab.SUMS.values():
        norms = []
        for name in ("first_token", "rows_first"):
            hooks = page["hooks"](page[name], policy_loss=page["first_token_alone"])
            (step,) = train(sampling=Sampling(prompts=prompts), hooks=hooks, **settings)
            norms.append(step.grad_norm)
        assert norms[0] < 1e-5 < 0.05 < norms[1]


def test_several_draws_give_each_prompt_so_many_tokens_each_in_adjacent_rows():
    numbers = itertools.count()
    tokens = lab.several_draws(torch.zeros(3, 16), 8, lambda rows: torch.tensor([next(numbers) for _ in rows]), draws=2)
    assert tokens.tolist() == [0] * 4 + [3] * 4 + [1] * 4 + [4] * 4 + [2] * 4 + [5] * 4


@pytest.mark.parametrize("draws", [1, 2, 4])
def test_the_formula_of_pass_at_k_is_the_sum_over_all_ways_that_four_answers_can_go(page, draws):
    f, r, rows = 0.4, 0.7, 4 // draws
    total = 0.0
    for starts in itertools.product([True, False], repeat=draws):
        for rests in itertools.product([True, False], repeat=4):
            chance = 1.0
            for right, p in [*zip(starts, [f] * draws, strict=True), *zip(rests, [r] * 4, strict=True)]:
                chance *= p if right else 1 - p
            total += chance * any(starts[row // rows] and rests[row] for row in range(4))
    f, r = torch.tensor([f]), torch.tensor([r])
    assert page["pass_at"](4, draws, f, r) == pytest.approx(total)


WRONG = {
    "drawn once and copied": lambda logits, n, sample: sample(logits).repeat_interleave(n),
    "Likely 2 are drawn and copied": partial(lab.several_draws, draws=2),
    "Likely 4 are drawn and copied": partial(lab.several_draws, draws=4),
    "It got a token of prompt 2": lambda logits, n, sample: sample(logits.repeat(n, 1)),
    "`sample` must draw them all": lambda logits, n, sample: torch.multinomial(logits.softmax(-1), n, True).flatten(),
    "returned [3]; [24] is expected": lambda logits, n, sample: sample(logits),
    "returned [24, 16]": lambda logits, n, sample: logits.repeat_interleave(n, 0),
    "It returned NoneType": lambda logits, n, sample: None,
}


@pytest.mark.parametrize("words", WRONG)
def test_a_first_token_is_judged_by_order_by_sample_and_by_its_own_draws(words):
    report = lab.judge_first_token(WRONG[words])
    assert not report and words in report.hint


def test_a_loop_of_one_draw_for_each_answer_is_right_too():
    assert lab.judge_first_token(lambda logits, n, sample: torch.stack([sample(logits) for _ in range(n)], 1).flatten())


def test_transformers_prefills_every_row_and_labkit_one(tiny):
    ids, mask = tiny.encode([OPEN])
    settings = {"attention_mask": mask, "do_sample": True, "max_new_tokens": 2, "temperature": 2.0}

    def theirs(n):
        return tiny.model.generate(ids, num_return_sequences=n, **settings)

    rows_of_passes = []
    hook = tiny.model.register_forward_pre_hook(
        lambda model, args, kwargs: rows_of_passes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    theirs(16)
    assert rows_of_passes[0] == 16
    rows_of_passes.clear()
    rollout.generate(tiny, [OPEN], num_samples=16)
    hook.remove()
    assert rows_of_passes[:2] == [1, 16]
    assert checks.first_token(theirs, prompt_length=ids.shape[1], calls=16)
