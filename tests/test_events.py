"""The one codec: any run comes back from disk equal and in order, and what cannot be carried is named."""

import json
import math
import pickle

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.common import write_whole
from labkit.events import Exam, Lost, Outcome, Run, Step

KEYS = st.text(max_size=4) | st.sampled_from(["$", "step", "event", "outcome"])
NUMBERS = st.floats() | st.integers() | st.just(-0.0)
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.sampled_from(["nan", "$nan", "\ud800"])
MEASURED = {name: NUMBERS for name in ("loss", "kl", "grad_norm", "nonfinite_params", "inner")}


def with_kinds(inner):
    """Lists, dicts, and every kind of thing the lab makes, holding `inner` where they hold anything."""
    dicts = st.dictionaries(KEYS, inner, max_size=4)
    step = st.fixed_dictionaries({"step": st.integers()}, optional={**MEASURED, "extra": dicts})
    outcome = st.builds(Outcome, st.text(max_size=5), st.none() | st.integers(), seconds=st.floats())
    exam = st.builds(Exam, st.integers(), st.dictionaries(KEYS, st.floats(0, 1), max_size=2))
    lost = st.builds(Lost, st.text(max_size=5), st.integers())
    return st.lists(inner, max_size=4) | dicts | step.map(lambda fields: Step(**fields)) | outcome | exam | lost


VALUES = st.recursive(LEAVES, with_kinds, max_leaves=10)


@given(st.lists(VALUES, max_size=4), st.dictionaries(KEYS, VALUES, max_size=2))
@settings(max_examples=100, deadline=None)
def test_any_run_comes_back_from_disk_and_from_a_pickle_with_its_events_in_order(tmp_path_factory, events, meta):
    run = Run(events, Outcome("exception:RuntimeError", 1, message="boom"), meta)
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    # as text: NaN is NaN, True is not 1, -0.0 is not 0.0, and a dict has its order
    assert repr(vars(Run.load(run.save(path)))) == repr(vars(run)) == repr(vars(pickle.loads(pickle.dumps(run))))


def test_a_run_gives_columns_rounds_and_numbers_of_a_lessons_own_under_their_names():
    steps = [Step(1, grad_norm=1.5, extra={"kl/add": 0.25}), Step(2, round=2, grad_norm=math.inf)]
    run = Run([*steps, {"note": "no step"}])
    assert run["grad_norm"] == [1.5, math.inf] and run.rounds == 2 and run.steps == steps
    assert steps[0]["kl/add"] == 0.25
    with pytest.raises(KeyError, match="grad_norm"):
        steps[0]["gradnorm"]


def test_a_line_is_json_with_the_fields_that_are_not_at_their_default(tmp_path):
    fields = {"step": 1, "round": True, "kl": 1.0, "nonfinite_params": 0}
    lines = Run([Step(**fields), Step(2), "\u2028\n"]).save(tmp_path / "run.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"format": "labkit-run/3", "meta": {}},
        {"event": {"$step": fields}},
        {"event": {"$step": {"step": 2}}},
        {"event": "\u2028\n"},
        {"outcome": {"$outcome": {}}},
    ]


@pytest.mark.parametrize("value", [torch.arange(2), {"a": [numpy.float32(1)]}, Step(1, kl=torch.tensor(1.0)), b"x"])
def test_what_cannot_be_saved_is_named_with_the_way_out_and_no_file_is_left(tmp_path, value):
    with pytest.raises(TypeError, match=r"cannot save a (Tensor|float32|bytes): call .tolist\(\) of a tensor"):
        Run([Step(1), value]).save(tmp_path / "run.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_a_trl_log_row_becomes_a_step_and_goes_back_under_trls_names():
    row = {"step": 4, "kl": 0.02, "completions/mean_length": 17.0, "rewards/accuracy/mean": 0.5, "epoch": 0.1}
    step = Step.from_log({**row, "done": True})
    assert "done" not in step.extra  # a flag is no measurement
    assert (step.step, step.kl, step.mean_length, step["completions/mean_length"]) == (4, 0.02, 17.0, 17.0)
    assert step["rewards/accuracy/mean"] == 0.5
    assert row.items() <= step.log().items()


HEADER = '{"format": "labkit-run/3", "meta": {}}\n'
EVENT = '{"event": {"$step": {"step": 1}}}\n'
OUTCOME = '{"outcome": {"$outcome": {}}}\n'
DAMAGED = [
    ("", "line 0: .*cut short"),
    ("\udcff", "line 1: "),
    ("not json\n", "line 1: "),
    ('{"format": "labkit-run/1", "meta": {}}\n', "line 1: .*expected format 'labkit-run/3', got 'labkit-run/1'"),
    (EVENT + OUTCOME, "line 1: .*format"),
    (HEADER + EVENT, "line 2: .*cut short"),
    (HEADER + '{"event": {"$outcome": {}}}\n', "line 2: .*cut short"),  # an outcome that is an event ends nothing
    (HEADER + EVENT[:-9] + "\n", "line 2: "),
    (HEADER + '{"event": {"$step": {"stepp": 1}}}\n' + OUTCOME, "line 2: .*stepp"),
    (HEADER + HEADER + OUTCOME, "line 2: .*'event'"),
    (HEADER + "3\n" + OUTCOME, "line 2: "),
    (HEADER + OUTCOME + EVENT, "line 3: .*after the outcome"),
]


@pytest.mark.parametrize(("text", "message"), DAMAGED)
def test_a_damaged_run_names_the_file_and_the_line(tmp_path, text, message):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=f"bad.jsonl, {message}"):
        Run.load(path)


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path):
    path = write_whole(tmp_path / "kept.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new \ud800")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["kept.txt"]
