"""Lesson 01: what of its text no verdict shows."""

from types import SimpleNamespace

import pytest
import torch
from cut import Page
from props import lesson_01 as lab

from labkit.grpo import advantage, grads, loss, policy


@pytest.fixture(scope="module")
def page():
    return Page("01")


def test_what_stays_finite_are_positions_that_no_row_reaches_and_the_exam_of_nan_is_0(page):
    trained = policy.load("tiny", "cpu")
    settings = {"optimizer": "sgd", "lr": 0.05, "mu": 8, "beta": 0.04, "rounds": 1}
    events = list(lab.run(trained, "cpu", page["kl"], page["update"], 0, **settings))
    assert events[-1].chances == {"add": 0.0} and events[0].chances["add"] > 0.3
    whole = {name: p.isfinite() for name, p in trained.model.named_parameters() if p.isfinite().any()}
    (position,) = whole
    reached = ~whole[position].all(1)
    assert "wpe" in position and reached[:9].all() and not reached[10:].any()  # a prompt of 6, an answer of at most 4


def test_zero_by_zero_differs_from_grpo_only_where_a_group_is_tied():
    rewards, logp = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]), torch.zeros(8, 2)
    part = SimpleNamespace(rewards=rewards, old_logp=logp, out=SimpleNamespace(num_samples=4))
    mine, usual = lab.zero_by_zero(logp, part).loss, loss.grpo(logp, logp, advantage.group_advantage(rewards, 4)).loss
    assert torch.allclose(mine[:4], usual[:4], atol=1e-3)
    assert mine[4:].isnan().all() and (usual[4:] == 0).all()


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
