"""Lesson 04: what its text says of the zero and of transformers."""

from functools import partial

import pytest
import torch
from cut import Page
from props import lesson_04 as props

from labkit import checks
from labkit.grpo import advantage, loss, rollout, task

OPEN = "16+01="  # many first tokens are possible at temperature 2


@pytest.fixture(scope="module")
def page():
    return Page("04", DEVICE="cpu")


def test_the_check_refuses_the_bug_and_takes_the_fix(tiny, page):
    ask = partial(rollout.generate, tiny, [OPEN], temperature=2.0, max_new_tokens=2)
    copied, own = (
        checks.first_token(lambda n, f=page[name]: ask(num_samples=n, first_token=f).tokens, calls=16)
        for name in ("first_token", "mended")
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
    assert {kind: len(prompts) for kind, prompts in props.SUMS.items()} == {props.FIRST: 88, props.SECOND: 58}
    assert sum(props.kind_of(prompt) is None for prompt in task.get("add").held_out()) == 4
    kinds = {"47+52=": props.FIRST, "36+47=": props.FIRST, "75+71=": props.SECOND}
    assert {prompt: props.kind_of(prompt) for prompt in kinds} == kinds


def test_with_copies_the_gradient_of_the_first_token_is_rounding_and_that_of_the_second_is_not(tiny, page):
    """On second-token sums few copied groups are tied, so it is not the ties."""
    copied, own = (props.inside_groups(tiny, page[name], props.SECOND, seed=0) for name in ("first_token", "mended"))
    assert copied["tied groups"] < 0.25
    assert copied["gradient, first token"] < 1e-4 * own["gradient, first token"]
    assert copied["gradient, second token"] > 0.5 * own["gradient, second token"]


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
