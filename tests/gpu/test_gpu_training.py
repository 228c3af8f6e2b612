"""Training on CUDA: the same numbers as on the CPU, and every lesson's claims, the failures among them."""

import math
import sys
from pathlib import Path

import cloudpickle
import pytest
import torch

from labkit import course, lessons, sandbox
from labkit.grpo import grads, policy, train

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a child need not import pytest

gpu = pytest.mark.gpu
DEVICES = ["cpu", pytest.param("cuda", marks=gpu)]
SECONDS = 600 if torch.cuda.is_available() else 150  # minutes over a stub driver, with values computed by the CPU
NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


@pytest.mark.parametrize("device", DEVICES)
def test_a_round_of_training_is_healthy_and_reports_the_memory_of_its_device(device):
    run = sandbox.run(train, device=device, timeout=SECONDS, seed=0, rounds=1, mu=4, optimizer="sgd", lr=0.02, beta=0.2)
    assert run.outcome and len(run.steps) == 4, run.outcome
    assert max(run["grad_norm"]) < 10 and max(run["nonfinite_params"]) == 0 and min(run["mean_length"]) >= 1
    used, held = run["memory_allocated"], run["memory_reserved"]
    if device == "cuda":
        assert all(0 < u <= h for u, h in zip(used, held, strict=True))
    else:
        assert all(map(math.isnan, used + held))


def logprobs(device):
    tiny = policy.load("tiny", device)
    ids, mask = tiny.encode(["12+34=", "7+5="])
    ids = torch.cat([ids, torch.full_like(ids[:, :3], 5)], 1)
    mask = torch.cat([mask, torch.ones_like(mask[:, :3])], 1)
    logp, logits = policy.token_logprobs(tiny.model, ids, mask, 3)
    loss = logp.mean() + logits.square().mean()
    gradients = torch.autograd.grad(loss, grads.trainable(tiny.model), allow_unused=True)
    norm = torch.stack([g.norm() for g in gradients if g is not None]).norm()
    yield {"logp": logp.flatten().tolist(), "norm": norm.item()}


@gpu
def test_log_probabilities_and_gradients_are_those_of_the_cpu():
    (here,), (there,) = (sandbox.run(logprobs, d, timeout=SECONDS).events for d in ("cpu", "cuda"))
    assert there["logp"] == pytest.approx(here["logp"], abs=1e-3)
    assert there["norm"] == pytest.approx(here["norm"], rel=1e-3)


def probe_health(scale, device):
    """What `grads.health` says of a fresh model, of a huge but finite one, and with one NaN and two Inf in it."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config() if scale == "124M" else GPT2Config(n_layer=2, n_embd=128, n_head=4, n_positions=32)
    model = GPT2LMHeadModel(config).to(device)
    named = dict(model.named_parameters())
    first, last = list(named)[1], list(named)[-2]
    yield {"parameters": sum(p.numel() for p in named.values()), "fresh": grads.health(model)}
    with torch.no_grad():
        named[first].view(-1)[0] = 3e38  # its square overflows: a suspect, cleared by the exact count
        yield {"huge": grads.health(model)}
        named[first].view(-1)[-1] = float("nan")
        named[last].view(-1)[:2] = float("inf")
        yield {"broken": grads.health(model), "where": {first: (1, 0), last: (0, 2)}}


@pytest.mark.parametrize(
    ("scale", "device"),
    [("tiny", "cpu"), pytest.param("tiny", "cuda", marks=gpu), pytest.param("124M", "cuda", marks=gpu)],
)
def test_health_finds_every_bad_parameter_and_only_those(scale, device):
    run = sandbox.run(probe_health, scale, device, timeout=SECONDS)
    assert run.outcome, run.outcome
    fresh, huge, broken = run.events
    assert fresh["fresh"] and huge["huge"] and (scale == "tiny" or fresh["parameters"] > 120_000_000)
    assert not broken["broken"] and broken["broken"].where == broken["where"]


@gpu
@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")), ids=lambda path: path.stem[:2])
def test_on_the_gpu_a_lesson_makes_every_claim_that_it_makes_on_the_cpu(path, tmp_path):
    (lesson,) = lessons.choose(NOTEBOOKS, [path.name[:2]])
    course.run(lesson, tmp_path, {"DEVICE": "cuda"})
    assert lesson.ok, (lesson.error, lesson.missing)
