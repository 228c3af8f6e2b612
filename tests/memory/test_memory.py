"""Meters, eval_scope, limits and settings, on simulated cards."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path

import pytest
import torch
from props.card import Tap
from torch import nn

from labkit.memory import allocator_settings, eval_scope, limit, meter
from labkit.memory.settings import explain

MIB, GIB = 2**20, 2**30
ON = "expandable_segments:True"


# ---- meters ---------------------------------------------------------------------------------------------


def test_the_meter_picks_the_recording_tap_and_reads_nothing_on_a_bare_cpu():
    nothing = meter("cpu").read()
    assert (nothing.allocated, nothing.total) == (0, 0)
    with Tap(total_memory=64 * MIB) as tap:
        kept = torch.zeros(4 * MIB, dtype=torch.uint8)
        torch.zeros(8 * MIB, dtype=torch.uint8)
        reading = meter().read()
        assert (reading.source, reading.allocated, reading.total) == ("simulated", 4 * MIB, 64 * MIB)
        assert reading.peak_allocated == 12 * MIB and reading.reserved + reading.free == 64 * MIB
        assert reading.reserved == tap.reserved
        assert "4.00 MiB allocated" in str(reading) and "of 64.00 MiB free" in str(reading)
        meter().reset_peak()
        assert meter().read().peak_allocated == kept.nbytes


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_what_is_not_here_is_said_in_one_line_with_the_way_out(monkeypatch):
    with pytest.raises(ValueError, match=r"sees no CUDA device here; use device='cpu' or 'auto'"):
        meter("cuda")
    with pytest.raises(ValueError, match=r"device 'tpu', expected auto, cpu, cuda"):
        meter("tpu")
    with pytest.raises(ValueError, match=r"1 to 0: a CPU has no memory"), limit(GIB):
        pass
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", ON)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    settings = allocator_settings()
    assert settings.in_force is None and settings.agree is None and not settings
    assert str(settings).startswith("CUDA is not in use here, so no allocator settings are in force")
    assert f"PYTORCH_ALLOC_CONF={ON}" in str(settings)


# ---- eval_scope -----------------------------------------------------------------------------------------


def modes(model):
    return [m.training for m in model.modules()]


@pytest.mark.parametrize("fails", [False, True])
def test_every_module_gets_its_own_mode_back_and_no_graph_is_built(fails):
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 8)))
    model[2][0].eval()  # frozen statistics: must not come back in training mode
    before = modes(model)
    with pytest.raises(KeyError) if fails else contextlib.nullcontext(), eval_scope(model) as scope:
        assert not any(modes(model))
        out = scope.keep(model(torch.ones(4, 64)))
        if fails:
            raise KeyError("on purpose")
    assert modes(model) == before
    assert not torch.is_inference_mode_enabled()
    assert not out.requires_grad and not out.is_inference()
    (nn.Linear(8, 1)(out)).sum().backward()  # a kept result may enter a graph later


def test_keep_copies_the_part_that_is_asked_for_and_refuses_what_might_hold_the_rest():
    from typing import NamedTuple

    class Pair(NamedTuple):
        a: torch.Tensor
        b: float

    with eval_scope() as scope:
        big = torch.ones(1000, 1000)
        kept = scope.keep({"row": big[0], "all": [Pair(big[:2].t(), 0.5)], "n": 3, "name": "x", "none": None})
        assert kept["row"].untyped_storage().nbytes() == 4000
        assert isinstance(kept["all"][0], Pair) and kept["all"][0].a.is_contiguous()
        big.zero_()
        assert kept["row"].sum() == 1000
        with pytest.raises(TypeError, match="a set may hold device tensors"):
            scope.keep({1, 2})
    assert torch.equal(kept["row"], torch.ones(1000))


@pytest.mark.parametrize("hoard", [False, True])
def test_results_that_are_kept_do_not_stay_on_the_card_and_results_that_are_hoarded_do(hoard):
    results = []
    with Tap(total_memory=GIB) as tap:
        model = nn.Linear(1000, 1000)
        before = tap.allocated
        with eval_scope(model) as scope:
            for _ in range(5):
                out = model(torch.ones(100, 1000))
                results.append(out if hoard else scope.keep(out))
                del out
        assert tap.allocated - before == scope.report.still_held
    assert scope.report.still_held >= 5 * 400_000 if hoard else scope.report.still_held == 0
    assert bool(scope.report) != hoard
    assert ("still allocated: something holds a reference" in str(scope.report)) == hoard


def test_neither_an_exception_nor_a_cycle_keeps_the_evaluations_tensors_alive():
    def fails(x):
        activations = [x * i for i in range(10)]
        cycle = [x * 2]
        cycle.append(cycle)  # which the collector alone can free
        raise ValueError(f"on purpose, with {len(activations)} tensors in this frame")

    with Tap() as tap:
        x = torch.ones(MIB)
        before = tap.allocated
        gc.disable()
        try:
            with pytest.raises(ValueError, match="on purpose") as caught, eval_scope() as scope:
                fails(x)
        finally:
            gc.enable()
        assert tap.allocated == before and scope.report
        assert caught.value.__traceback__ is not None


@pytest.mark.parametrize("scope", [contextlib.nullcontext(), eval_scope()], ids=["without", "with"])
def test_a_scope_gives_the_cache_back_before_long_lived_tensors_settle_in_it(scope):
    """An 8 GiB card: 7 GiB of evaluation, then 7 x 600 MiB that stay, then a request of 2 GiB."""
    fits = not isinstance(scope, contextlib.nullcontext)
    with Tap(total_memory=8 * GIB, fake=True) as tap:
        with scope:
            evaluation = [torch.empty(GIB, dtype=torch.uint8) for _ in range(7)]
            del evaluation
        stays = [torch.empty(600 * MIB, dtype=torch.uint8) for _ in range(7)]
        assert tap.allocated == len(stays) * 600 * MIB
        with contextlib.nullcontext() if fits else pytest.raises(torch.OutOfMemoryError):
            torch.empty(2 * GIB, dtype=torch.uint8)


# ---- limit ----------------------------------------------------------------------------------------------


def test_a_limit_holds_inside_the_block_only():
    with Tap(total_memory=8 * GIB) as tap:
        with limit(GIB):
            with pytest.raises(torch.OutOfMemoryError, match="1.00 GiB allowed|1024.00 MiB allowed"):
                torch.empty(2 * GIB, dtype=torch.uint8)
            with limit(4 * GIB), pytest.raises(torch.OutOfMemoryError):
                torch.empty(5 * GIB, dtype=torch.uint8)
            assert tap.allocator.memory_fraction == 0.125
        assert tap.allocator.memory_fraction == 1.0
        torch.empty(5 * GIB, dtype=torch.uint8)


@pytest.mark.parametrize("nbytes", [True, 0.5, 9 * GIB, 0, "8GiB"])
def test_a_limit_that_cannot_be_is_named(nbytes):
    words = f"a whole number of bytes, 1 to the device's {8 * GIB}, got {nbytes!r}"
    with Tap(total_memory=8 * GIB), pytest.raises(ValueError, match=words), limit(nbytes):
        pass


# ---- allocator settings ---------------------------------------------------------------------------------


def snapshot(string="", expandable=False, segments=()):
    settings = {"PYTORCH_CUDA_ALLOC_CONF": string, "expandable_segments": expandable}
    return {"allocator_settings": settings, "segments": [{"is_expandable": e} for e in segments]}


OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


BOTH = {NEW: ON, OLD: "max_split_size_mb:128"}
TWO = "max_split_size_mb:128"
SPACED = {OLD: f"max_split_size_mb: 128, {ON}"}
IN_FORCE = [  # torch's version, the environment, what the allocator says; the name that counts, agreement, text
    ("2.8.0", {NEW: ON}, snapshot(segments=[False]), None, False, "no effect: torch 2.8.0 reads PYTORCH_CUDA_ALLOC"),
    ("2.9.1", {NEW: ON}, snapshot(segments=[False]), None, False, "has no effect"),  # the last of those
    ("2.10.0", {NEW: ON}, snapshot(ON, True, [True]), NEW, True, "What was asked for is what runs"),
    ("2.8.0", {OLD: ON}, snapshot(ON, True, [True, True]), OLD, True, "2 of 2 segments"),
    ("2.13.0", BOTH, snapshot(TWO, False, [False]), OLD, False, "not looked at, because PYTORCH_CUDA_ALLOC_CONF is"),
    ("2.13.0", BOTH, snapshot(ON, True, [True]), OLD, False, f"{OLD}={TWO} was not taken"),
    ("2.13.0", {NEW: ON}, snapshot("", False, [False]), NEW, False, "before the first use of CUDA"),
    ("2.13.0", {NEW: ON}, snapshot(ON, False, [False]), NEW, False, "the allocator does otherwise"),
    ("2.13.0", {NEW: ON}, snapshot(ON, True, []), NEW, None, "not proved: allocate something"),
    ("2.13.0", {NEW: ON}, snapshot(ON, True, [False, True]), NEW, True, "1 of 2 segments are expandable; the others"),
    ("2.13.0", {NEW: ON}, snapshot(ON, True, [False]), NEW, False, "0 of 1 segments"),
    ("2.13.0", {}, snapshot("", False, [False]), None, True, "In force: the defaults"),
    ("2.13.0", {}, snapshot(ON, True, [True]), None, True, "set from code"),
    ("2.13.0", SPACED, snapshot(f"{ON},{TWO}", True, [True]), OLD, True, "is what runs"),  # in another order
]


@pytest.mark.parametrize(("version", "environ", "of_allocator", "honoured", "agree", "text"), IN_FORCE)
def test_settings_in_force_are_told_from_settings_in_the_environment(
    version, environ, of_allocator, honoured, agree, text
):
    settings = explain(of_allocator, environ, version)
    assert (settings.honoured, settings.agree, bool(settings)) == (honoured, agree, agree is True)
    assert text in str(settings), settings


def test_the_reading_order_is_the_one_in_the_installed_header():
    if tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 10):
        pytest.skip("an older header")
    text = (Path(torch.__file__).parent / "include/c10/cuda/CUDAAllocatorConfig.h").read_text()
    text = text.split("CUDAAllocatorConfig& instance()")[1]
    at = [text.index(f'get_env("{name}")') for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")]
    assert at == sorted(at)


# ---- on a GPU -------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_on_a_gpu_the_meter_the_limit_and_the_scope_act_on_the_real_allocator():
    torch.cuda.empty_cache()
    ruler = meter("cuda")
    before = ruler.read()
    block = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    assert ruler.read().allocated - before.allocated == 256 * MIB
    del block
    with eval_scope() as scope:
        torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    assert scope.report.given_back >= 512 * MIB
    with limit(GIB, "cuda"), pytest.raises(torch.OutOfMemoryError):
        torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    assert allocator_settings().in_force is not None
