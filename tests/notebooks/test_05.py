"""Lesson 05: the bug and the fix by labkit's own check, what a loss holds, its judges, and readers' wrong functions."""

import copy
import gc
import os

import pytest
import torch
from cut import Page
from props import diagnosis as judges
from props import lesson_05 as lab
from props import lesson_05_arithmetic, lesson_05_judges, lesson_05_pictures
from props import lesson_05_card as card
from props.card import Tap

from labkit import checks, sandbox

GIB = 2**30


@pytest.fixture(scope="module")
def page():
    return Page("05")


def test_the_check_fails_on_the_bug_and_on_half_fixes_and_passes_on_the_fix(tiny, page):
    model = copy.deepcopy(tiny.model)
    model.loss_type = "ForCausalLM"
    ids, _ = tiny.encode(["12<34=", "98<25="])
    for name, passes in (("evaluate", False), ("no_grad_alone", False), ("only_loss", False), ("evaluate_fixed", True)):
        report = checks.leaves_nothing(lambda model, f=page[name], kept=[]: f(model, [ids], kept), model)
        assert report.passed is passes, report
        assert passes or "Every call leaves more" in report.hint


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


def test_what_the_page_counts_behind_a_loss_is_what_comes_free_when_the_loss_goes(page):
    with card.model_on_card("cpu", card.CARD, layers=1) as (model, meter):
        kept = []
        page["only_loss"](model, [card.tokens("cpu", 3, 350)], kept)
        weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        nodes, saved = page["behind"](kept[0], weights)
        nbytes = sum(size for size, *_ in saved.values())
        before = meter.read().allocated
        del nodes, saved  # a node holds what it has saved
        kept.clear()
        assert before - meter.read().allocated == pytest.approx(nbytes, rel=0.01)  # blocks are a little larger


def test_exported_settings_go_and_a_gpu_without_the_room_gets_the_simulated_card(monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for free, device, place in ((8.9, "auto", "cpu"), (9.1, "auto", "cuda"), (80, "cpu", "cpu")):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (int(free * GIB), 80 * GIB))
        assert card.place(device) == place
    assert "PYTORCH_ALLOC_CONF" not in os.environ


def leaves_gradients_off(model, batches, kept):
    torch.set_grad_enabled(False)
    with lab_evaluating(model):
        for ids in batches:
            kept.append(model(input_ids=ids, labels=ids).loss.item())


def lab_evaluating(model):
    from labkit.grpo.exam import evaluating

    return evaluating(model)


def sets_all_modes(model, batches, kept):
    model.eval()
    with torch.no_grad():
        for ids in batches:
            kept.append(model(input_ids=ids, labels=ids).loss.item())
    model.train()


def makes_its_numbers_up(model, batches, kept):
    with lab_evaluating(model), torch.inference_mode():
        for ids in batches:
            model(input_ids=ids, labels=ids)
            kept.append(0.0)


WRONG = {
    "Grad mode": leaves_gradients_off,
    "training flag": sets_all_modes,
    "not the losses": makes_its_numbers_up,
    "one number into `kept` for each": lambda model, batches, kept: None,
}


@pytest.mark.parametrize("words", WRONG)
def test_the_judge_says_what_is_wrong(words):
    try:
        report = lesson_05_judges.judge_evaluate(WRONG[words])
    finally:
        torch.set_grad_enabled(True)
    assert not report and words in report.hint, report


def raises(model, batches, kept):
    raise TypeError("mine")


def test_a_function_that_raises_is_drawn_and_stands_in_the_table(page):
    settings = {"rows": 1, "before": (3,), "updates": 3, "card": card.CARD, "where": "cpu", "seed": 0, "layers": 1}
    run = sandbox.run(lab.train, raises, page["update"], **settings)
    assert run.outcome.exception == "TypeError" and len(run.steps) == 2
    left, right = lesson_05_pictures.redrawn({0: run}, {0: run}, "yours", 0, (3,), "a title").axes
    assert "yours, update 3: TypeError" in [text.get_text() for text in left.texts]
    crosses = [line for line in right.lines if line.get_marker() == "X"]
    assert [cross.get_xdata()[0] for cross in crosses] == [3, 3]
    ways = {"yours": {"evaluate": raises}}
    rows = lesson_05_arithmetic.rows_of(lab.measured(ways, 1, 0, "cpu"), ways, 1, 1)
    assert rows[0]["one evaluation leaves, GiB"] == "it did not return"


def test_a_training_loss_holds_nothing_after_backward_and_all_its_graph_before(page):
    def before_backward(model, batches, kept):
        kept.append(model(input_ids=batches[0], labels=batches[0]).loss)

    ways = {"after": {"evaluate": page["training_loss"]}, "before": {"evaluate": before_backward}}
    left = {name: one["left"] for name, one in lab.measured(ways, 1, 0, "cpu").items()}
    assert left["after"] < 2**16 and left["before"] > 0.1 * GIB


def test_the_four_lines_name_the_four_runs_and_one_evaluation_alone_hides_what_is_replaced(page):
    sound = {"evaluate": page["evaluate_fixed"], "update": page["update"], "before": (3, 5), "rows": 3, "updates": 5}
    cases = {"evaluation": {"evaluate": page["only_loss"]}, "update": {"update": page["entropy_kept"]}}
    cases |= {"replaced": {"evaluate": page["replaced"]}, "nothing": {}}
    arms = {name: sound | case | {"layers": 1} for name, case in cases.items()}
    logs = lesson_05_judges.logs_of(arms, 0, "cpu")
    assert {name: page["diagnosed"](log) for name, log in logs.items()} == {name: name for name in logs}
    second = logs["replaced"]["after"][1] - logs["replaced"]["before"][1]
    assert abs(second) < 0.1 < 0.5 < logs["replaced"]["after"][1]
    assert judges.judge(page["diagnosed"], list(logs.items()))


def test_transformers_own_evaluation_leaves_nothing(tmp_path, tiny):
    from transformers import Trainer, TrainingArguments

    model = copy.deepcopy(tiny.model).train()
    model.loss_type = "ForCausalLM"
    ids, _ = tiny.encode(["12<34=", "98<25="])
    rows = [{"input_ids": row, "labels": row} for row in ids]
    settings = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True)
    trainer = Trainer(model=model, args=settings, eval_dataset=rows)
    trainer.evaluate()
    with Tap() as tap:
        tap.adopt(model)
        before = tap.allocated
        trainer.evaluate()
        gc.collect()
        assert tap.allocated - before < 10_000 and tap.peak > before
