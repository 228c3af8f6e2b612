import copy
import random

import pytest
import torch
from cut import bug_cells, claims

from labkit import checks, memory
from labkit.common import format_size
from labkit.memory import Tap
from labkit.memory.allocator import Allocator, OutOfMemory

GIB, MIB = 2**30, 2**20
LEAKS = ("keep_logits", "keep_caches", "keep_losses", "keep_errors")


@pytest.fixture
def model(tiny):
    mine = copy.deepcopy(tiny.model)
    mine.loss_type = "ForCausalLM"
    return mine


@pytest.fixture
def ids(tiny):
    return tiny.encode(["12<34=", "98<25="])[0]


def test_the_check_that_passes_on_the_fix_fails_on_the_bug_cut_out_of_the_lesson(model, ids):
    evaluate, kept = bug_cells("05")["evaluate"], []
    report = checks.leaves_nothing(lambda model: evaluate(model, [ids], kept), model)
    assert not report and "Every call leaves more" in report.hint, report

    def in_scope(model):
        with memory.eval_scope(model) as scope:
            return [scope.keep(model(input_ids=ids, labels=ids).loss)]

    assert checks.leaves_nothing(in_scope, model)


@pytest.mark.parametrize("name", LEAKS)
def test_each_leak_of_the_lesson_grows_and_neither_gc_nor_empty_cache_frees_it(model, ids, name):
    leak, kept, held = bug_cells("05")[name], [], []
    with Tap() as tap:
        tap.adopt(model)
        start = tap.allocated
        for _ in range(3):
            leak(model.eval(), ids, kept)
            held.append(tap.allocated - start)
        torch.cuda.empty_cache()
        tap.empty_cache()
        assert 0 < held[0] < held[1] < held[2] == tap.allocated - start
    report = checks.leaves_nothing(lambda model: leak(model, ids, kept), model)
    assert not report and "Every call leaves more" in report.hint, report


def scenario(settings="", *, stays=600 * MIB, empty=()):
    """An evaluation of 7 x 1 GiB, then seven blocks that stay, then 2 GiB; `empty` names the moments of empty_cache.

    Written apart from the lesson's own `program`, with the blocks freed in another order.
    """
    gpu = Allocator(8 * GIB, settings)
    for block in reversed([gpu.malloc(GIB) for _ in range(7)]):
        gpu.free(block)
    if "after eval" in empty:
        gpu.empty_cache()
    for _ in range(7 if stays else 0):
        gpu.malloc(stays)
    if "after carving" in empty:
        gpu.empty_cache()
    try:
        gpu.malloc(2 * GIB)
    except OutOfMemory as refusal:
        return gpu, refusal
    return gpu, None


def test_the_figures_of_the_lesson_are_the_allocators():
    _, refusal = scenario()
    assert format_size(refusal.allocated) == "4.10 GiB" and format_size(refusal.unallocated) == "2.90 GiB"
    assert "2.90 GiB is reserved by PyTorch but unallocated" in str(refusal)
    gpu, refusal = scenario(empty={"after eval"})
    assert refusal is None and format_size(gpu.reserved_bytes) == "6.10 GiB"
    assert scenario(empty={"after carving"})[1] is not None
    gpu, refusal = scenario("expandable_segments:True")
    assert refusal is None and format_size(gpu.reserved_bytes) == "7.01 GiB"


def test_without_long_lived_blocks_the_allocator_empties_its_cache_by_itself():
    gpu, refusal = scenario(stays=0)
    assert refusal is None and gpu.num_alloc_retries == 1 and gpu.num_ooms == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(10))
def test_every_verdict_holds_for_this_seed(tmp_path, monkeypatch, seed):
    monkeypatch.setenv("OMP_NUM_THREADS", random.Random(seed).choice("12"))  # the lesson takes one thread
    committed, made, error = claims("05", tmp_path, SEED=seed, DEVICE="cpu")
    assert not error and made == committed
