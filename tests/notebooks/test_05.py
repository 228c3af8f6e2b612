import contextlib
import copy
import gc
import inspect
import json
import os
import random
import re
import weakref
from types import SimpleNamespace

import pytest
import torch
from cut import bug_cells, installed, path_of

from labkit import checks, memory
from labkit.memory import Tap
from labkit.memory.allocator import Allocator, OutOfMemory

GIB, MIB = 2**30, 2**20
LEAKS = ("keep_logits", "keep_caches", "keep_losses", "keep_errors")


def cell(text, number="05", **space):
    """The names that the lesson's one code cell with this text defines, run in `space`."""
    cells = json.loads(path_of(number).read_text())["cells"]
    (source,) = ["".join(c["source"]) for c in cells if c["cell_type"] == "code" and text in "".join(c["source"])]
    exec(compile(source, f"lesson {number}", "exec"), space)
    return space


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
            gc.collect()
            held.append(tap.allocated - start)
        torch.cuda.empty_cache()
        tap.empty_cache()
        assert 0 < held[0] < held[1] < held[2] == tap.allocated - start
    report = checks.leaves_nothing(lambda model: leak(model, ids, kept), model)
    assert not report and "Every call leaves more" in report.hint, report


def test_the_ring_is_held_until_the_collector_runs(model, ids):
    leak = bug_cells("05")["keep_cycle"]
    gc.collect()
    gc.disable()
    try:
        with Tap() as tap:
            tap.adopt(model)
            start = tap.allocated
            leak(model.eval(), ids, [])
            assert tap.allocated > start
            gc.collect()
            assert tap.allocated == start
    finally:
        gc.enable()


def test_hold_lets_go_of_its_model_when_it_returns():
    # An error holds frames, and they hold those that called them: without `kept.clear()` the model of `hold` stays
    # until a collection, and on a GPU the next run begins with it.
    class Model(torch.nn.Module):
        def forward(self, input_ids):
            return SimpleNamespace(logits=input_ids)

    def build(where):
        model = Model()
        made.append(weakref.ref(model))
        return model

    made = []
    space = bug_cells("05") | {"build": build, "WHERE": "cpu", "tokens": lambda *_: torch.zeros(2)}
    space["card"] = lambda: contextlib.nullcontext(memory.meter("cpu"))
    hold = cell("def hold(", **space)["hold"]
    gc.collect()
    gc.disable()
    try:
        hold(space["keep_errors"], lambda kept: None)
        assert made[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("number, room", [("05", 8), ("15", 6)])
def test_a_gpu_without_the_room_gets_the_simulated_card_and_settings_that_were_exported_go(
    monkeypatch, capsys, number, room
):
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    small, large, off = (room - 0.1, "auto", "simulated"), (room + 0.1, "auto", "this GPU"), (80, "cpu", "simulated")
    for free, device, says in (small, large, off):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (int(free * GIB), 80 * GIB))
        for name in names:
            monkeypatch.setenv(name, "expandable_segments:True")
        space = bug_cells(number) | {"GIB": GIB, "DEVICE": device}
        assert cell("ROOM = ", number, **space)["CUDA"] is (says == "this GPU")
        assert says in capsys.readouterr().out and not set(names) & set(os.environ)


def test_the_solution_can_be_pasted_and_passes(model, ids):
    solution = cell("def solution(", torch=torch, QUESTIONS=[ids])["solution"]
    assert checks.leaves_nothing(solution, model)


@pytest.fixture(scope="module")
def whose():
    return cell("def whose(", re=re, MIB=MIB)["whose"]


def refusal(dice):
    """A refusal on a simulated card of 8 GiB: random blocks, some of them freed, then requests until one is refused."""
    gpu = Allocator(8 * GIB, others=dice.choice((0, 0, 2 * GIB, 5 * GIB)), context=dice.choice((0, 512 * MIB)))
    blocks = []
    try:
        while True:
            blocks.append(gpu.malloc(dice.randrange(50, 3000) * MIB))
            if dice.random() < 0.4:
                gpu.free(blocks.pop(dice.randrange(len(blocks))))
    except OutOfMemory as no:
        return str(no)


def test_the_rule_written_out_in_the_lesson_is_the_librarys(whose):
    dice = random.Random(0)
    texts = [refusal(dice) for _ in range(300)]
    assert [whose(text) for text in texts] == [memory.owner(text).verdict for text in texts]
    assert len({whose(text) for text in texts}) == 3


def test_what_the_lesson_says_about_transformers_trainer():
    loop = installed("transformers", "trainer.py").split("def evaluation_loop(")[1].split("\n    def ")[0]
    kept, moved = loop.index("all_preds.add(logits)"), loop.index("args.eval_accumulation_steps is not None")
    assert kept < moved and "all_preds.to_cpu_and_numpy()" in loop[moved : moved + 300]
    assert "logits = self.preprocess_logits_for_metrics(logits, labels)" in loop
    assert "self.args.batch_eval_metrics" in loop
    step = installed("transformers", "trainer.py").split("def prediction_step(")[1].split("\n    def ")[0]
    assert "with torch.no_grad():" in step and "if prediction_loss_only:" in step


def test_what_the_lesson_says_about_accelerates_release_memory():
    text = inspect.getsource(pytest.importorskip("accelerate.utils").release_memory)
    assert "objects[i] = None" in text and "clear_device_cache(garbage_collection=True)" in text
