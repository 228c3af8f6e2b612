"""Lesson 01: what of its text no verdict shows; the judges of its exercises."""

from types import SimpleNamespace

import pytest
import torch
from cut import Page
from props import lesson_01 as lab
from props.diagnosis import judge

from labkit.events import Run, Step
from labkit.grpo import Hooks, advantage, grads, load, loss, train


@pytest.fixture(scope="module")
def page():
    return Page("01")


def test_zero_by_zero_differs_from_grpo_only_where_a_group_is_tied(page):
    rewards, logp = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]), torch.zeros(8, 2)
    part = SimpleNamespace(rewards=rewards, old_logp=logp, out=SimpleNamespace(num_samples=4))
    usual = loss.grpo(logp, logp, advantage.group_advantage(rewards, 4)).loss
    mine = page["zero_by_zero"](logp, part).loss
    assert torch.allclose(mine[:4], usual[:4], atol=1e-3)
    assert mine[4:].isnan().all() and (usual[4:] == 0).all()


def test_the_bug_is_lesson_00s_loop_without_its_limit(page):
    settings = {"policy": "tiny", "device": "cpu", "optimizer": "sgd", "lr": 0.01, "rounds": 1}
    own, bare = load("tiny", "cpu"), load("tiny", "cpu")
    list(train("add", **settings | {"policy": own}, kl=page["k3"], hooks=Hooks(update=page["plain_step"])))
    list(train("add", **settings | {"policy": bare}, max_norm=None))
    for one, other in zip(own.model.parameters(), bare.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("norm", [0.2, 0.31, 5.0, 9.9, 11.0, float("nan")])
def test_the_solution_does_what_labkits_guard_does(page, norm):
    moved = []
    for update in (page["guarded"], grads.guard(0.3, 10.0)):
        model = torch.nn.Linear(3, 2, bias=False)
        with torch.no_grad():
            model.weight.fill_(1.0)
        model.weight.grad = torch.full((2, 3), norm / 6**0.5)
        did = update(model, torch.optim.AdamW(model.parameters(), lr=0.1))
        moved.append((model.weight.detach(), did.skipped))
    torch.testing.assert_close(moved[0][0], moved[1][0])
    assert moved[0][1] == moved[1][1] == (not norm <= 10)


def test_an_update_that_steps_rightly_and_returns_nothing_hears_what_the_loop_needs(page):
    def silent(model, optimizer):
        page["guarded"](model, optimizer)

    report = lab.judge_update(silent)
    assert not report and "grads.Update" in report.hint and lab.judge_update(page["guarded"])


def test_a_skip_is_called_a_repetition_only_in_its_round_and_with_the_same_norm():
    steps = [(1, 1, 70.0, True), (1, 2, 70.0, True), (1, 3, 80.0, True), (2, 1, 80.0, True), (2, 2, 1.0, False)]
    run = Run(events=[Step(at, r, i, grad_norm=n, skipped=s) for at, (r, i, n, s) in enumerate(steps, 1)])
    assert lab.kinds_of_updates(run) == ["skipped", "skipped again", "skipped", "skipped", "taken"]


def test_a_diagnosis_that_names_the_cause_and_another_update_hears_which(page):
    finite, lost = [0, 0, 0], [0, 0, 6]
    logs = [(("logits", 0), {"norms": [3.0, 1.0, 2.0], "kls": [0.0, 0.1, 0.1], "broken": finite})]
    logs.append((("step", 1), {"norms": [3.0, 70.0, float("nan")], "kls": [0.0, 40.0, 9e9], "broken": lost}))
    logs.append((("loss", 3), {"norms": [3.0, 1.0, float("nan")], "kls": [0.0, 0.1, 0.1], "broken": lost}))
    assert judge(page["diagnosis"], logs)
    report = judge(lambda log: ("step", 3) if log["broken"][-1] else ("logits", 0), logs)
    assert not report and report.seen == {"right": "1 of 3"} and "Run 2: it says ('step', 3)" in report.hint


def test_transformers_clip_is_no_guard_and_a_callback_can_drop_an_update(tmp_path):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Regression(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(1))

        def forward(self, x, labels):
            return {"loss": (self.w * x * 1e30).square().mean()}  # the gradient overflows

    class Guard(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            if not grads.global_norm(model.parameters()) <= 10:
                model.zero_grad()

    def trained(callbacks=(), **settings):
        quiet = {"report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True}
        args = TrainingArguments(tmp_path, max_steps=1, **quiet, **settings)
        model, rows = Regression(), [{"x": torch.ones(1), "labels": torch.ones(1)}] * 8
        Trainer(model, args, train_dataset=rows, callbacks=list(callbacks)).train()
        return model.w.item()

    assert not 0.9 < trained() < 1.1  # clipping an overflow is no guard
    assert trained([Guard()], max_grad_norm=0) == 1.0
