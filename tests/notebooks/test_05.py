"""Lesson 05: the bug and the fix by labkit's own check, other holders, the diagnosis, the real cases and their page."""

import contextlib
import copy
import gc
import importlib.util
import itertools
import json
import os
import random
import sys
from collections import Counter

import pytest
import torch
from cut import FOLDER, bug_cells, installed, path_of
from props.card import Tap

from labkit import checks, memory

sys.path.append(str(FOLDER))
from props import lesson_05 as props
from props import out_of_memory

GIB = 2**30
CELLS = json.loads(path_of("05").read_text())["cells"]


def defined(name, **space):
    """A function of the lesson's cells, alone, with these names around it."""
    sources = ["".join(c["source"]) for c in CELLS if c["cell_type"] == "code"]
    (source,) = [source for source in sources if f"def {name}(" in source]
    space = {"torch": torch, "props": props, "memory": memory, "gc": gc, "GIB": GIB} | space
    exec(source, space)
    return space[name]


@pytest.fixture
def model(tiny):
    mine = copy.deepcopy(tiny.model)
    mine.loss_type = "ForCausalLM"
    return mine


@pytest.fixture
def ids(tiny):
    return tiny.encode(["12<34=", "98<25="])[0]


def test_the_check_fails_on_the_bug_and_on_half_fixes_and_passes_on_the_fix(model, ids):
    bug = bug_cells("05")["evaluate"]
    alone = defined("no_grad_alone", evaluate=bug)
    for evaluate in (bug, alone, defined("loss_alone")):
        kept = []
        report = checks.leaves_nothing(lambda model, run=evaluate, kept=kept: run(model, [ids], kept), model)
        assert not report and "Every call leaves more" in report.hint, report
    fix, losses = defined("evaluate_fixed"), []
    assert checks.leaves_nothing(lambda model: fix(model, [ids], losses), model)
    assert len(losses) >= 2 and all(type(loss) is float for loss in losses)  # a number holds no graph


def test_the_solution_of_the_first_exercise_leaves_nothing_and_a_kept_logit_fails(model, ids):
    entropies = defined("entropies", QUESTIONS=[ids])
    with torch.no_grad(), props.evaluating(model):
        true = torch.distributions.Categorical(logits=model(ids).logits).entropy().mean().item()
    assert checks.leaves_nothing(entropies, model, losses=[true])
    kept = []

    def keeps(model):
        kept.append(model(ids).logits)
        return entropies(model)

    assert not checks.leaves_nothing(keeps, model, losses=[true])
    assert not checks.leaves_nothing(lambda model: [0.9 * x for x in entropies(model)], model, losses=[true])


def test_a_tensor_that_only_the_graph_holds_is_alive_and_has_no_referrer_in_python():
    weights = torch.ones(1000, requires_grad=True)

    def loss(referrers):
        saved = torch.ones(1000)
        result = (weights * saved).sum()
        referrers.extend(type(holder).__name__ for holder in gc.get_referrers(saved))
        return result

    with Tap() as tap:
        before, referrers = tap.allocated, []
        kept = loss(referrers)
        assert tap.allocated - before > 4000 and not set(referrers) - {"frame"}
        del kept
        assert tap.allocated == before


@pytest.mark.parametrize("length", (448, 1000, 1024))
def test_the_fixed_run_fits_and_a_longer_batch_does_not(length):
    """The sum of the lesson: on a card with room for everything, held + need on either side of 8 GiB."""
    space = {"evaluate": defined("evaluate_fixed"), "update": defined("update")}
    with props.card("cpu", 4 * props.CARD) as meter:
        run = props.loop(seed=0, meter=meter, where="cpu", lengths={3: length}, **space)
        third = [event for event in itertools.islice(run, 6) if not isinstance(event, dict)][2]
        run.close()
    assert (third["peak_bytes"] > props.CARD) == (length > 448)


def test_the_blocks_of_a_tap_know_the_lines_that_asked_for_them():
    with Tap(fake=True, stacks=True) as tap:
        kept = torch.empty(1024)
        gone = torch.empty(4096)
        del gone
        live = [b for s in tap.snapshot() for b in s["blocks"] if b["state"] == "active_allocated"]
    assert [block["size"] for block in live] == [kept.untyped_storage().nbytes()]
    here = [frame for frame in live[0]["frames"] if frame["filename"] == __file__]
    assert here[0]["name"] == "test_the_blocks_of_a_tap_know_the_lines_that_asked_for_them" and here[0]["line"] > 0
    with Tap(fake=True) as tap:
        kept = torch.empty(1024)
        assert not [b["frames"] for s in tap.snapshot() for b in s["blocks"] if b["frames"]]


def test_exported_settings_go_and_a_gpu_without_the_room_gets_the_simulated_card(monkeypatch):
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for free, device, there in ((8.9, "auto", "cpu"), (9.1, "auto", "cuda"), (80, "cpu", "cpu")):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (int(free * GIB), 80 * GIB))
        for name in names:
            monkeypatch.setenv(name, "expandable_segments:True")
        assert props.place(device) == there and not set(names) & set(os.environ)


def test_evaluating_gives_each_submodule_its_own_mode_back(model):
    model.train()
    leaf = list(model.modules())[-1].eval()
    with contextlib.suppress(KeyError), props.evaluating(model):
        assert not any(module.training for module in model.modules())
        raise KeyError
    assert model.training and not leaf.training


def test_the_rule_of_the_second_exercise_is_the_librarys():
    diagnosed = defined("diagnosed")
    assert props.names_all_five(diagnosed)
    for seed in range(30):
        for name, message, held in props.unseen(seed):
            assert memory.owner(message, held).verdict == name == diagnosed(props.numbers(message), held)
    for wrong in ("a leak", "a longer batch"):
        assert not props.names_all_five(lambda numbers, held, wrong=wrong: wrong)
    alone = lambda numbers, held: diagnosed(numbers, held[:1])
    assert not props.names_all_five(alone)


def test_most_real_messages_are_read_as_their_thread_does_in_each_of_five_wordings():
    cases = out_of_memory.cases()
    wordings = Counter(case["form"] for case in cases)
    assert len(cases) >= 20 and set(wordings) == set(out_of_memory.FORMS) and min(wordings.values()) >= 2
    assert len({case["source"] for case in cases}) == len(cases)
    for case in cases:
        said = memory.owner(out_of_memory.message(case))
        assert None not in (said.tried, said.total, said.free, said.allocated, said.unallocated), case
    right, every = out_of_memory.score(cases)
    assert (every - right) == 8 and every == 49  # the lesson and the page say so


def test_the_page_of_real_messages_is_the_one_that_the_script_writes():
    path = FOLDER.parent / "scripts" / "out_of_memory.py"
    script = importlib.util.module_from_spec(importlib.util.spec_from_file_location("out_of_memory_page", path))
    script.__spec__.loader.exec_module(script)
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), "python scripts/out_of_memory.py --write"


def test_what_the_lesson_says_about_transformers_trainer():
    loop = installed("transformers", "trainer.py").split("def evaluation_loop(")[1].split("\n    def ")[0]
    kept, moved = loop.index("all_preds.add(logits)"), loop.index("args.eval_accumulation_steps is not None")
    assert kept < moved and "all_preds.to_cpu_and_numpy()" in loop[moved : moved + 300]
    assert "logits = self.preprocess_logits_for_metrics(logits, labels)" in loop
    assert "self.args.batch_eval_metrics" in loop


def test_the_unseen_runs_differ_from_seed_to_seed():
    messages = {message for seed in range(5) for _, message, _ in props.unseen(seed)}
    assert len(messages) == 5 * len(props.NAMES) and random.Random(0)
