"""`labkit.GuardCallback` on a real `GRPOTrainer`: what it skips, what it leaves alone bit for bit, what it says."""

import logging
import math
import random
from types import SimpleNamespace

import pytest
import torch

import labkit
from labkit.callback import ENOUGH, GuardCallback
from labkit.grpo import policy, task

pytest.importorskip("trl", reason="needs trl: pip install labkit[trl]")
pytestmark = pytest.mark.filterwarnings("ignore")

PROMPTS = task.get("add").sample(32, random.Random(0))


def graded(prompts, completions, **_):
    return task.rewards(prompts, completions)


def trained(tmp_path, *callbacks, reward=graded, steps=6, **settings):
    """A GRPO run of TRL on the tiny policy, on the CPU."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    torch.manual_seed(0)
    tiny = policy.load("tiny", "cpu")
    given = {"per_device_train_batch_size": 32, "num_generations": 8, "max_completion_length": 4, "learning_rate": 1e-4}
    given |= {"beta": 0.04, "logging_steps": 1, "report_to": [], "use_cpu": True, "save_strategy": "no", "seed": 0}
    given |= {"disable_tqdm": True, "bf16": False, "lr_scheduler_type": "constant", "gradient_checkpointing": False}
    config = GRPOConfig(output_dir=str(tmp_path / "trl"), max_steps=steps, **(given | settings))
    data = Dataset.from_dict({"prompt": PROMPTS})
    trainer = GRPOTrainer(
        tiny.model, reward, config, train_dataset=data, processing_class=tiny.tokenizer, callbacks=list(callbacks)
    )
    trainer.train()
    return trainer


def finite(trainer):
    return all(p.isfinite().all() for p in trainer.model.parameters())


def test_a_healthy_run_is_the_same_bit_for_bit(tmp_path):
    guard = labkit.GuardCallback()
    # some of the six norms are above 3.6: these updates are clipped, and the others are not
    with_guard, without = (trained(tmp_path, *guards, max_grad_norm=3.6) for guards in ([guard], []))
    assert all(map(torch.equal, with_guard.model.parameters(), without.model.parameters()))
    norms = [[row["grad_norm"] for row in t.state.log_history if "grad_norm" in row] for t in (with_guard, without)]
    assert norms[0] == norms[1] and len(norms[0]) == 6 and min(norms[0]) < 3.6 < max(norms[0]), norms
    assert guard.skipped == [] and guard.alarms == [] and with_guard.args.max_grad_norm == 3.6
    assert not labkit.diagnose(guard.run).findings, "nothing is wrong, and six rows are too few to call it healthy"


def huge_from(call):
    """A reward of 1 / error, once with an error near 0. (NaN and infinite rewards are left out by TRL 1.16 itself.)"""
    calls = []

    def reward(prompts, completions, **_):
        calls.append(1)
        rewards = task.rewards(prompts, completions)
        return [3e38, *rewards[1:]] if len(calls) == call else rewards

    return reward


def test_a_run_that_dies_of_one_reward_finishes_with_the_guard(tmp_path, caplog):
    with pytest.raises(RuntimeError, match="probability tensor contains"):
        trained(tmp_path, reward=huge_from(3), scale_rewards=False)
    guard = GuardCallback(record=tmp_path / "run.jsonl")
    with caplog.at_level(logging.WARNING, "labkit.guard"):
        trainer = trained(tmp_path, guard, reward=huge_from(3), scale_rewards=False)
    assert finite(trainer) and trainer.state.global_step == 6
    assert guard.skipped == [3]
    assert "step 3: first update skipped, gradient norm" in caplog.text and "is not finite" in caplog.text
    assert "1 updates skipped: 3" in guard.report()
    assert labkit.diagnose(tmp_path / "run.jsonl").findings[0].cause == "reward-function-failure"


def test_a_learning_rate_that_breaks_the_policy_is_named(tmp_path):
    guard = GuardCallback()
    trainer = trained(tmp_path, guard, steps=9, learning_rate=0.3)
    assert finite(trainer)
    assert labkit.diagnose(guard.run).findings[0].cause == "learning-rate"
    assert any("every group is tied" in text for text in guard.alarms)


def test_skipped_updates_move_neither_weights_nor_optimizer_state(tmp_path, caplog):
    """Nor after updates that were taken: test_guard_processes.py."""
    guard = GuardCallback(skip_above=1e-9)
    with caplog.at_level(logging.WARNING, "labkit.guard"):
        trainer = trained(tmp_path, guard, gradient_accumulation_steps=2)
    assert guard.skipped == [1, 2, 3, 4, 5, 6]
    assert all(map(torch.equal, trainer.model.parameters(), policy.load("tiny", "cpu").model.parameters()))
    assert not trainer.optimizer.state_dict()["state"]
    assert caplog.text.count("updates in a row skipped") == 1


def test_the_rolling_threshold_learns_from_norms_that_were_taken():
    guard = GuardCallback()
    assert guard._limit() == 1e4  # the first has nothing to be compared with
    guard._norms.extend([0.0, 0.01])
    assert guard._limit() == 10  # a batch that was nearly tied makes no rule
    guard._norms.extend([1.0] * 2)
    assert guard._limit() == 100 < 2e4
    guard._norms.extend([1.0] * 6)
    generator = torch.Generator().manual_seed(0)
    guard._norms.extend((1 + 0.3 * torch.rand(ENOUGH, generator=generator)).tolist() + [0.0] * 20)
    assert 1.3 < guard._limit() < 2.2


def test_an_optimizer_of_another_model_and_dropout_are_said_before_the_first_step(tmp_path):
    guard = GuardCallback()
    tiny = policy.load("tiny", "cpu")
    stranger = torch.optim.AdamW(policy.load("tiny", "cpu").model.parameters(), lr=1e-4)
    tiny.model.transformer.h[0].mlp.dropout.p = 0.1
    args = SimpleNamespace(deepspeed=None, fsdp=None, max_grad_norm=1.0, num_generations=8)
    guard.on_train_begin(args, None, None, model=tiny.model, optimizer=stranger)
    assert "not this model's" in guard.alarms[0] and "mlp.dropout 0.1" in guard.alarms[1]


def test_what_cannot_be_guarded_is_refused():
    for value in (0, math.nan):
        with pytest.raises(ValueError, match="skip_above = .* must be above 0"):
            GuardCallback(value)
    args = SimpleNamespace(deepspeed="zero3.json", fsdp="", max_grad_norm=1.0)
    with pytest.raises(ValueError, match="under DeepSpeed or FSDP"):
        GuardCallback().on_train_begin(args, None, None)
    assert args.max_grad_norm == 1.0
