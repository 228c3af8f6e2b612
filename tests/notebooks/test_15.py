import json

import pytest
from cut import installed, path_of

import labkit
from labkit.common import format_size
from labkit.memory.allocator import Allocator, OutOfMemory

GIB, MIB = 2**30, 2**20


def cells(*texts, **space):
    """The lesson's code cells that contain one of these texts, run in order in one namespace."""
    for c in json.loads(path_of("15").read_text())["cells"]:
        source = "".join(c["source"])
        if c["cell_type"] == "code" and any(text in source for text in texts):
            exec(compile(source, "lesson 15", "exec"), space)
    return space


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


@pytest.fixture(scope="module")
def lesson():
    """The recorded run of one evaluation, and the lesson's own functions that play it."""
    wanted = ("import contextlib", "GIB, MIB =", "def build(", "def training_step(", "def evaluate(")
    wanted += ("RUN = record(", "def play(", "def trace(", "def fresh_program(")
    source = path_of("15").read_text()
    assert all(text in source for text in wanted)
    given = {"ROUNDS": 1, "SEED": 0, "DEVICE": "cpu", "CARD_GIB": 5.0, "EMPTY": [("empty_cache",)]}
    return cells(*wanted, labkit=labkit, **given)


@pytest.mark.parametrize("gib", [3.5, 4.5, 5, 6])
def test_the_lesson_plays_a_recording_as_the_ledger_replays_it(lesson, gib):
    ledger = labkit.memory.Tap(fake=True).ledger
    ledger.log.extend(lesson["RUN"])
    again = ledger.replay(int(gib * GIB))
    gpu = Allocator(int(gib * GIB))
    rows, refusal = lesson["trace"](lesson["RUN"], gpu)
    assert str(refusal) == str(again.oom) and gpu.peak_reserved_bytes == again.allocator.peak_reserved_bytes
    assert max(used for _, used, _ in rows) == again.peak or refusal is not None


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_solution_can_be_pasted_and_passes_on_other_programs(lesson, seed):
    names = cells("def judge(", "def solution(", **lesson | {"SEED": seed})
    report = names["judge"](names["solution"])
    assert report and report.seen["with the least reserved"] == 20
    assert not names["judge"](lambda calls: names["solution"](calls) + 2)
    assert not names["judge"](lambda calls: "14") and not names["judge"](lambda calls: -1)


def test_the_trainers_torch_empty_cache_steps_acts_between_forward_and_backward():
    step = installed("transformers", "trainer.py").split("def training_step(")[1].split("\n    def ")[0]
    places = [step.index(t) for t in ("self.compute_loss(", "torch_empty_cache_steps", "accelerator.backward(")]
    assert places == sorted(places)
    assert "[10% slower performance]" in installed("transformers", "training_args.py")


def test_trl_empties_the_cache_before_it_wakes_vllm_for_new_weights():
    sync = installed("trl", "generation/vllm_generation.py").split("def sync_weights(")[1].split("\n    def ")[0]
    assert sync.index("empty_cache()") < sync.index('self.llm.wake_up(tags=["weights"])')
    config = installed("trl", "trainer/grpo_config.py")
    assert all(n in config for n in ("vllm_mode", "vllm_enable_sleep_mode", "vllm_gpu_memory_utilization"))
