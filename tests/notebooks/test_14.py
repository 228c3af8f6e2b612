"""Lesson 14: its loss and its range against other ways to compute them; what it reads off a round; its judges."""

import math

import pytest
import torch
from cut import Page
from props import lesson_14 as lab
from props.diagnosis import judge

from labkit.events import Run, Step
from labkit.grpo import Hooks, Sampling, kl, loss, train
from labkit.grpo.batch import Batch
from labkit.grpo.rollout import Completions

LENGTHS = [1, 4, 15, 16]


@pytest.fixture(scope="module")
def page():
    return Page("14")


def batch_of(moved, advantages):
    """Answers of `LENGTHS` tokens whose tokens had a log-prob of -1 when they were drawn."""
    mask = (torch.arange(16) < torch.tensor(LENGTHS)[:, None]).long()
    none = torch.zeros(4, 1, dtype=torch.long)
    out = Completions(mask, mask, none, none, [""] * 4, 1)
    old = torch.full((4, 16), -1.0)
    counts = torch.ones(4, dtype=torch.bool)
    return Batch(out, ["long"] * 4, advantages, advantages, counts, old, old), (old + moved).requires_grad_()


def test_the_pages_loss_is_labkits_gspo_in_value_gradient_and_clip(page):
    generator = torch.Generator().manual_seed(0)
    for below, above in ((0.2, 0.2), (3e-4, 4e-4)):
        for _ in range(20):
            moved = 2 * below * torch.randn(4, 16, generator=generator)
            part, logp = batch_of(moved, torch.randn(4, generator=generator))
            ours = page["gspo"](logp, part, below, above)
            reference = loss.gspo(logp, part.old_logp, part.advantages, part.mask, clip=(below, above))
            assert torch.equal(ours.clipped, reference.clipped)
            torch.testing.assert_close(ours.loss, reference.loss)
            slopes = [torch.autograd.grad(each.loss[:, 0].sum(), logp)[0] for each in (ours, reference)]
            torch.testing.assert_close(slopes[0], slopes[1])


@pytest.mark.parametrize("place", [0, -1])
def test_by_length_a_bad_answer_is_held_once_one_token_fell_as_far_as_grpo_lets_it(page, place):
    """In sum length * ln(1 - 0.2 / length): between 0.2 nats, of a very long answer, and ln 0.8, of one token."""
    for fallen, held in ((-0.199, False), (-0.224, True)):
        moved = torch.zeros(4, 16)
        for row, length in enumerate(LENGTHS):
            moved[row, place % length] = fallen
        part, logp = batch_of(moved, -torch.ones(4))
        below, above = page["by_length"](part.mask)
        assert page["gspo"](logp, part, below, above).clipped[:, 0].tolist() == [held] * 4
        wide = page["gspo"](logp, part).clipped[:, 0].tolist()
        assert wide == [fallen < math.log(0.8), False, False, False]


def test_a_ratio_of_the_sequence_on_the_kl_pushes_a_token_that_agrees_with_the_reference():
    slopes = {}
    for level in ("token", "sequence"):
        logp = torch.tensor([[2.0, 0.0, 0.0, 0.0]], requires_grad=True)
        log_ratio = logp - logp.detach()
        ratio = (log_ratio.mean(1, keepdim=True) if level == "sequence" else log_ratio).exp()
        (kl.k3(logp, torch.zeros(1, 4)) * ratio).sum().backward()
        slopes[level] = logp.grad[0].tolist()
    assert slopes["token"] == pytest.approx([2, 0, 0, 0], abs=1e-6)
    assert slopes["sequence"][1] == pytest.approx(0.284, abs=1e-3)


def answer(text, wrong_at, advantage=-1.0, row=0):
    return lab.Answer(row, "33+65:", text, advantage, [*text, "⏎"], wrong_at, [1.0] * (len(text) + 1))


def test_the_wrong_answer_that_was_drawn_most_often_is_followed_and_no_right_one():
    answers = [answer("98", -1, 1.0), answer("98", -1, 1.0), answer("98", -1, 1.0), answer("88", 0), answer("08", 0)]
    assert lab.drawn_most_often([*answers, answer("08", 0)]).text == "08"
    assert lab.drawn_most_often(answers).text == "88"


def test_an_answer_is_held_since_the_first_update_after_which_it_has_no_gradient():
    frames = [{"held": [[False] * 3, [update >= 3] * 3]} for update in range(9)]
    assert lab.held_since(frames, answer("88", 0, row=1)) == 3
    assert lab.held_since(frames, answer("88", 0, row=0)) is None


def test_the_grpo_of_the_followed_digit_is_the_loss_of_a_run_without_a_hook():
    short = {"policy": "tiny-long", "device": "cpu", "seed": 0, "rounds": 1, "mu": 3}
    short["sampling"] = Sampling(prompts=2, num_samples=4, max_new_tokens=16)
    plain, hooked = (list(train("long", **short, hooks=hooks)) for hooks in (Hooks(), Hooks(policy_loss=lab.grpo)))
    assert [step.grad_norm for step in plain] == [step.grad_norm for step in hooked]
    assert any(step.clip_fraction for step in plain) and plain[-1].grad_norm > 0


def test_the_share_of_clipped_tokens_leaves_the_tied_groups_out():
    shares = [(1, 0.2, 0.0), (2, 0.3, 0.5), (3, 0.0, 1.0)]  # in round 3 no answer has an advantage
    steps = [Step(at, round=at, clip_fraction=share, frac_reward_zero_std=tied) for at, share, tied in shares]
    assert lab.clipped(Run(steps)) == pytest.approx((0.2 + 0.6) / 2)


def test_the_three_chances_add_up_and_ten_off_is_what_the_checkpoint_was_trained_on(script):
    from labkit.grpo import load, task

    wrong_answer = script("make_checkpoint").wrong_answer
    assert all(lab.ten_off(prompt) == wrong_answer("long", prompt) for prompt in task.get("long").held_out())
    chances = lab.chances(load("tiny-long", "cpu"))
    assert sum(chances.values()) == pytest.approx(1) and 0 < chances["any third answer"] < 0.1


def one_number(mask):
    return 0.2, 0.2


def of_the_width(mask):
    end = torch.full((len(mask), 1), 0.2 / mask.shape[1])
    return end, end


def flat(mask):
    end = 0.2 / mask.sum(1)
    return end, end


def only_below(mask):
    return 0.2 / mask.sum(1, keepdim=True), torch.full((len(mask), 1), 0.2)


def exactly_a_tokens_fall_in_sum(mask):
    end = 1 - 0.8 ** (1 / mask.sum(1, keepdim=True))
    return end, end


WRONG = {
    "below is 0.01385. It should be 0.0125": exactly_a_tokens_fall_in_sum,
    "below: expected a tensor [5, 1], a number for each answer. It is float": one_number,
    "below is 0.0125. It should be 0.2": of_the_width,
    "It is [5]": flat,
    "above is 0.2. It should be 0.0125": only_below,
    "It returned Tensor. A pair": lambda mask: 0.2 / mask.sum(1, keepdim=True),
    "It returned NoneType": lambda mask: None,
}


@pytest.mark.parametrize("words", WRONG)
def test_a_range_is_judged_by_length_at_both_ends_and_with_padding(page, words):
    assert lab.judge_range(page["by_length"])
    report = lab.judge_range(WRONG[words])
    assert not report and words in report.hint, report.hint


def test_a_diagnosis_that_calls_every_clipped_run_ill_hears_which_is_healthy(page):
    logs = [("healthy", {"best exam": 0.62, "last exam": 0.62, "clipped tokens": 0.97})]
    logs.append(("range", {"best exam": 0.6, "last exam": 0.4, "clipped tokens": 0.2}))
    assert judge(page["diagnosis"], logs)
    report = judge(lambda log: "rate" if log["clipped tokens"] > 0.5 else "range", logs)
    assert not report and "it was 'healthy'" in report.hint
