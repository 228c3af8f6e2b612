"""Device-side asserts, provoked for real in a child: text, type, code, the poisoned context, and who survives.

A test with `device` runs on the CPU too, where the same code raises an ordinary error at the guilty line. That the
runtime's text is read rightly is tested everywhere, with fakes (tests/sandbox/test_signature.py).
"""

import os
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest
import torch

from labkit import sandbox

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a child need not import pytest

gpu = pytest.mark.gpu
DEVICES = ["cpu", pytest.param("cuda", marks=gpu)]
MESSAGE = "probability tensor contains either `inf`, `nan` or element < 0"  # Linux, torch 2.5 and on
SECONDS = 600 if torch.cuda.is_available() else 150  # minutes over a stub driver, with values computed by the CPU
ROOT = Path(__file__).resolve().parents[2]


def sample(device, *row):
    """Draw one token from a row of probabilities; an unrelated operation comes after the draw."""
    rows = torch.tensor([row], device=device)
    yield {"ready": True}
    drawn = torch.multinomial(rows, 1)
    later = torch.arange(4, device=device) * 2
    yield {"later": later.sum().item(), "drawn": drawn.item()}


def look_up(device, rows, token):
    """Embed a token id."""
    table = torch.nn.Embedding(rows, 8, device=device)
    yield {"ready": True}
    yield {"sum": table(torch.tensor([token], device=device)).sum().item()}


def poisoned(device):
    """Meet a NaN, catch the error, and try to go on in the same process."""
    healthy = torch.ones(4, device=device)
    spare = torch.ones(32 << 20, device=device)  # 128 MiB, freed: something for empty_cache to give back
    del spare
    calls = {"cpu": healthy.cpu, "new tensor": lambda: torch.ones(2, device=device).sum().item()}
    if device == "cuda":
        torch.cuda.synchronize()
        calls |= {"synchronize": torch.cuda.synchronize, "empty_cache": torch.cuda.empty_cache}
    try:
        torch.multinomial(torch.tensor([[0.5, float("nan")]], device=device), 1).item()
    except RuntimeError as error:
        yield {"type": type(error).__name__, "code": getattr(error, "error_code", None), "text": str(error)}
    for name, call in calls.items():
        try:
            call()
            yield {"call": name, "works": True}
        except RuntimeError as error:
            yield {"call": name, "works": False, "text": str(error)}


def asserted(outcome, kind):
    """What every device-side assert looks like from outside."""
    assert outcome.signature == f"device-assert:{kind}", (outcome.signature, outcome.message, outcome.stderr)
    assert "device-side assert triggered" in outcome.message
    assert outcome.exception in ("AcceleratorError", "RuntimeError"), outcome.exception
    if outcome.exception == "AcceleratorError":  # torch 2.8 and on
        assert outcome.error_code == 710
    return True


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.5], ids=["nan", "inf", "negative"])
def test_sampling_from_a_broken_row_dies_with_its_own_text(device, bad):
    run = sandbox.run(sample, device, 0.5, bad, 0.5, timeout=SECONDS)
    assert run.events == [{"ready": True}] and sandbox.is_multinomial_assert(run.outcome)
    assert not sandbox.is_index_assert(run.outcome)
    if device == "cuda":
        assert asserted(run.outcome, "multinomial") and MESSAGE in run.outcome.stderr
    else:
        assert run.outcome.signature == "exception:RuntimeError" and MESSAGE in run.outcome.message


@pytest.mark.parametrize("device", DEVICES)
def test_a_first_probability_of_zero_and_the_last_token_id_are_fine(device):
    run = sandbox.run(sample, device, 0.0, 1.0, 0.0, timeout=SECONDS)
    assert run.outcome and run.events[1] == {"later": 12, "drawn": 1}
    assert sandbox.run(look_up, device, 16, 15, timeout=SECONDS).outcome


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_of_zeros_is_a_look_alike_with_another_text(device):
    run = sandbox.run(sample, device, 0.0, 0.0, timeout=SECONDS)
    assert not run.outcome and "sum of probabilities <= 0" in run.outcome.message + run.outcome.stderr
    assert not sandbox.is_multinomial_assert(run.outcome)


@pytest.mark.parametrize("device", DEVICES)
def test_a_token_id_beyond_the_embedding_is_an_index_assert(device):
    run = sandbox.run(look_up, device, 16, 16, timeout=SECONDS)
    assert run.events == [{"ready": True}] and sandbox.is_index_assert(run.outcome)
    assert not sandbox.is_multinomial_assert(run.outcome)
    if device == "cuda":
        assert asserted(run.outcome, "index")
        classic, vectorised = "srcIndex < srcSelectDimSize", "index out of bounds"
        assert classic in run.outcome.stderr or vectorised in run.outcome.stderr, run.outcome.stderr
    else:
        assert run.outcome.message == "index out of range in self"


def look_up_many(kind):
    """Embed 64 ids that have no row."""
    ids = torch.full((8, 8, 2), 16, device="cuda").unbind(-1)[0]  # a strided view
    ids = {"strided": ids, "contiguous": ids.contiguous(), "up to 16": ids[:2, :8].contiguous()}[kind]
    yield {"sum": torch.nn.Embedding(16, 128, device="cuda")(ids).sum().item()}


@gpu
@pytest.mark.parametrize(
    ("kind", "kernel"),
    [("contiguous", "vectorized_gather_kernel"), ("strided", "ScatterGather"), ("up to 16", "indexSelectSmallIndex")],
)
def test_which_kernel_an_embedding_dies_in_depends_on_the_number_and_the_layout_of_its_ids(kind, kernel):
    """Lesson 09's table. A change of PyTorch may end this: then the table needs its new texts."""
    run = sandbox.run(look_up_many, kind, timeout=SECONDS)
    assert asserted(run.outcome, "index") and kernel in run.outcome.stderr, run.outcome.stderr[:500]


def draw_eight(bad):
    torch.multinomial(torch.tensor([[0.5, bad]], device="cuda"), 8, replacement=True)
    torch.cuda.synchronize()
    yield {}


@gpu
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.5], ids=["nan", "inf", "negative"])
def test_eight_draws_at_once_have_another_text_and_are_told_all_the_same(bad):
    run = sandbox.run(draw_eight, bad, timeout=SECONDS)
    assert asserted(run.outcome, "multinomial") and MESSAGE not in run.outcome.stderr
    assert "MultinomialKernel.cu" in run.outcome.stderr


@pytest.mark.parametrize("device", DEVICES)
def test_after_the_assert_nothing_on_the_device_works_in_that_process(device):
    run = sandbox.run(poisoned, device, timeout=SECONDS)
    first, *rest = run.events
    works = {row["call"]: row["works"] for row in rest}
    if device == "cuda":
        assert first["type"] in ("AcceleratorError", "RuntimeError") and "device-side assert" in first["text"]
        assert works == {"cpu": False, "new tensor": False, "synchronize": False, "empty_cache": False}
        assert MESSAGE in run.outcome.stderr
    else:
        assert first["type"] == "RuntimeError" and works == {"cpu": True, "new tensor": True}


@pytest.mark.parametrize("device", DEVICES)
def test_with_launch_blocking_the_traceback_names_multinomial(device):
    run = sandbox.run(sample, device, float("nan"), 1.0, env={"CUDA_LAUNCH_BLOCKING": "1"}, timeout=SECONDS)
    assert sandbox.is_multinomial_assert(run.outcome)
    below = run.outcome.traceback.rpartition(", in sample\n")[2].splitlines()  # the last line of `sample` that ran
    assert "torch.multinomial(" in below[0], run.outcome.traceback


PARENT = """
import sys
sys.path.insert(0, {here!r})
import torch
from labkit import sandbox
from test_gpu_asserts import sample
dead = sandbox.run(sample, "cuda", float("nan"), 1.0, timeout={seconds})
alive = sandbox.run(sample, "cuda", 0.0, 1.0, timeout={seconds})
print(bool(dead.outcome), bool(alive.outcome), alive.events[1]["drawn"], torch.cuda.is_initialized())
"""


@gpu
def test_a_new_process_is_healthy_and_the_caller_never_touched_cuda():
    code = PARENT.format(here=os.path.dirname(__file__), seconds=SECONDS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS + 20, cwd=ROOT)
    assert done.stdout.split() == ["False", "True", "1", "False"], done.stdout + done.stderr
