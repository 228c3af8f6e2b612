"""Lesson 14: its loss and its range against other ways to compute them; what it reads off a round; its judges."""

import math

import pytest
import torch
from cut import Page
from props import lesson_14 as lab
from props import lesson_14_judges as judges

from labkit.events import Exam, Outcome, Run, Step
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
    assert judges.judge_range(page["by_length"])
    report = judges.judge_range(WRONG[words])
    assert not report and words in report.hint, report.hint


@pytest.mark.parametrize("seed", [0, 1, 67])
def test_unseen_losses_are_of_both_levels_each_with_three_ranges_and_with_none(seed):
    cases = judges.unseen_losses(seed)
    for level in ("token", "sequence"):
        ends = sorted(below for of, below in cases if of == level)
        assert len(ends) == 4 and ends[0] < 0.003 < ends[1] < 0.07 < ends[2] < 0.5 and ends[3] == 1
    assert cases != judges.unseen_losses(seed + 100)


@pytest.mark.parametrize("seed", [0, 20, 113])
def test_the_reading_of_a_loss_is_the_same_with_padding_whatever_stands_there(page, seed):
    def padded(loss_of):
        def with_padding(logp, old_logp, advantages, mask):
            waste = torch.full((1, 5), float("nan"))
            nothing = torch.zeros(1, 5)
            longer = [torch.cat(pair, 1) for pair in ((logp, waste), (old_logp, waste), (mask, nothing))]
            return loss_of(longer[0], longer[1], advantages, longer[2])

        return with_padding

    assert judges.judge_reading(page["reading"], seed)
    assert judges.judge_reading(lambda loss_of: page["reading"](padded(loss_of)), seed)


def the_upper_end(page):
    """What a probe with good answers would find: that end is twice as far."""

    def reading(loss_of):
        level, below = page["reading"](loss_of)
        return level, below * 2

    return reading


def test_a_reading_of_losses_hears_of_the_first_that_it_misses(page):
    wrong = {
        "it returned None. A pair is expected": lambda loss_of: None,
        "is that of the": lambda loss_of: ("both", 0.2),
        "ratio may fall": the_upper_end(page),
        "A number is expected": lambda loss_of: (page["reading"](loss_of)[0], None),
    }
    for words, reading in wrong.items():
        report = judges.judge_reading(reading, 0)
        assert not report and words in report.hint, report.hint
    assert judges.judge_reading(lambda loss_of: ("token", 1.0), 0).seen == {"right": "1 of 8"}


def test_what_a_token_has_fallen_by_is_the_furthest_of_a_round_and_one_without_a_bad_answer_is_left_out():
    falls = [
        (1, {"fallen while pushed": 0.5}),
        (1, {"fallen while pushed": 3.0}),
        (2, {}),
        (3, {"fallen while pushed": 1}),
    ]
    run = Run([Step(at, round=of, extra=extra) for at, (of, extra) in enumerate(falls)])
    assert lab.fallen_in(run) == {1: 3.0, 3: 1.0} and lab.fallen(run) == 2.0
    assert lab.fallen(Run(run.events, Outcome("timeout"))) == math.inf
    assert lab.fallen_by_round([run, run]) == {"round 1": "3.00", "round 3": "1.00"}


def test_the_pages_probe_follows_bad_answers_and_leaves_padding_and_what_is_held_out(page):
    moved = torch.zeros(4, 16)
    moved[0, 3] = -9.0  # behind the end of the first answer
    moved[1, 0] = -5.0  # held: the mean of its four tokens is below ln 0.8
    moved[2, 0] = -3.0
    moved[3, 0] = -8.0  # of a good answer
    part, logp = batch_of(moved, torch.tensor([-1.0, -1.0, -1.0, 1.0]))
    probe = page["by"](page["gspo"])["hooks"].probe
    assert probe(part, logp.detach(), None) == {"fallen while pushed": pytest.approx(3.0)}
    good, logp = batch_of(moved, torch.ones(4))
    assert probe(good, logp.detach(), None) == {}


def test_the_exam_after_some_rounds_is_0_where_a_run_did_not_come_so_far():
    run = Run([Exam(at, {"long": 0.4 + at / 10}) for at in range(3)])
    assert lab.exam_after(2, run) == pytest.approx(0.6) and lab.exam_after(3, run) == 0.0
