"""The one codec: any run comes back from disk equal and in order, and what cannot be carried is named."""

import dataclasses
import json
import math
import pickle
from collections import OrderedDict, defaultdict, namedtuple
from enum import IntEnum
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.common import write_whole
from labkit.events import Lost, Outcome, Run, Step, decode, encode


def same(a, b):
    """Equal, of one type, in one order; NaN is NaN and -0.0 is not 0.0."""
    if type(a) is not type(b):
        return False
    if dataclasses.is_dataclass(a):
        return same(vars(a), vars(b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return repr(a) == repr(b)


FIELDS = [f.name for f in dataclasses.fields(Step)]
KEYS = st.text(max_size=4) | st.sampled_from(["$", "$$", "$step", "$float", "float", "event", "outcome", *FIELDS])
NUMBERS = st.floats() | st.integers() | st.just(-0.0)
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.sampled_from(["nan", "$nan", "\ud800"])
SETTINGS = {name: NUMBERS for name in ("loss", "kl", "grad_norm", "nonfinite_params", "inner")}


def with_kinds(inner):
    """Lists, dicts, and every kind of thing the lab makes, holding `inner` where they hold anything."""
    dicts = st.dictionaries(KEYS, inner, max_size=4)
    step = st.fixed_dictionaries({"step": st.integers()}, optional={**SETTINGS, "extra": dicts})
    outcome = st.builds(Outcome, st.text(max_size=5), st.none() | st.integers(), seconds=st.floats())
    lists = st.lists(inner, max_size=4)
    return (
        lists
        | dicts
        | step.map(lambda fields: Step(**fields))
        | outcome
        | st.builds(Lost, st.text(max_size=5), st.integers())
        | st.builds(Run, lists, outcome, dicts)
    )


VALUES = st.recursive(LEAVES, with_kinds, max_leaves=15)


@given(st.lists(VALUES, max_size=6), st.dictionaries(KEYS, VALUES, max_size=3))
@settings(max_examples=200, deadline=None)
def test_any_run_comes_back_from_disk_and_from_a_pickle_with_its_events_in_order(tmp_path_factory, events, meta):
    run = Run(events, Outcome("exception:RuntimeError", 1, message="boom"), meta)
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    assert same(Run.load(run.save(path)), run) and same(pickle.loads(pickle.dumps(run)), run)


def test_a_run_gives_columns_rounds_and_numbers_of_a_lessons_own_under_their_names(tmp_path):
    steps = [
        Step(step=1, kl=0.0, grad_norm=1.5, extra={"kl/add": 0.25}),
        Step(step=2, round=2, grad_norm=math.inf, kl=math.nan),
    ]
    run = Run(
        [*steps, {"note": "kept"}], Outcome("exception:RuntimeError", 1, message="boom", seconds=0.5), {"seed": 3}
    )
    back = Run.load(run.save(tmp_path / "run.jsonl"))
    assert back["grad_norm"] == [1.5, math.inf] and back.rounds == 2
    assert back.steps[0]["kl/add"] == 0.25


def test_fields_at_their_default_are_left_out_and_no_others():
    assert encode(Step(1)) == {"$step": {"step": 1}}
    assert encode(Step(1, round=True, nonfinite_params=0, kl=1.0)) == {
        "$step": {"step": 1, "round": True, "kl": 1.0, "nonfinite_params": 0}
    }
    assert encode(Outcome()) == {"$outcome": {}}


def test_every_line_of_a_saved_run_is_strict_json(tmp_path):
    path = Run([Step(step=1, grad_norm=math.inf), math.nan, "\u2028\n"]).save(tmp_path / "run.jsonl")
    lines = path.read_text().splitlines()
    assert len(lines) == 5 and json.loads(lines[0]) == {"format": "labkit-run/2", "meta": {}}
    for line in lines:
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


class Size(IntEnum):
    SMALL = 1


class Tagged(Step):
    pass


def ring():
    ring = []
    ring.append(ring)
    return ring


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ((1, 2), r"events\[3\]\['loss'\] is a tuple: .* make a tuple or a set a list"),
        ({1, 2}, r"events\[3\]\['loss'\] is a set: .* make a tuple or a set a list"),
        (namedtuple("Pair", "a b")(1, 2), "is a Pair: .* make a tuple or a set a list"),
        (b"x", "is a bytes: .* decode bytes to a str"),
        ({"a": [1, {2: 3}]}, r"events\[3\]\['loss'\]\['a'\]\[1\] has the key 2, a int: make every key a str"),
        (OrderedDict(a=1), "is a OrderedDict: expected .* a plain .* dict"),
        (defaultdict(int), "is a defaultdict: expected .* a plain .* dict"),
        (Size.SMALL, "is a Size: expected .* a plain bool, int"),
        (Step(1, extra={"x": 1j}), r"events\[3\]\['loss'\].extra\['x'\] is a complex: expected None or a plain bool"),
        (Tagged(1), "is a Tagged: expected .* a plain .* Step"),
        (
            Path("x"),
            "is a PosixPath: expected None or a plain bool, int, float, str, list, dict, Step, Exam, Outcome, Lost or ",
        ),
        (object(), r"\['loss'\] is a object"),
        (ring(), r"events\[3\] is nested too deeply, or holds itself"),
    ],
)
def test_what_cannot_be_carried_is_named_at_save_with_the_way_out(tmp_path, value, says):
    run = Run([Step(1), "fine", {}, {"loss": value}])
    with pytest.raises((TypeError, ValueError), match=says):
        run.save(tmp_path / "run.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_a_tensor_an_array_and_their_scalars_are_told_to_be_lists():
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    for value in (numpy.float64(1), numpy.arange(2), numpy.bool_(True), torch.tensor(1.0), torch.arange(2)):
        with pytest.raises(
            TypeError, match=rf"value\[0\] is a {type(value).__name__}: .* call .tolist\(\) of a tensor"
        ):
            encode([value])
        with pytest.raises(TypeError, match=r"value.kl is a "):
            encode(Step(1, kl=value))
    assert encode(torch.arange(2).tolist()) == [0, 1]


def test_an_unfit_setting_is_named_too(tmp_path):
    with pytest.raises(TypeError, match=r"meta\['lr'\] is a tuple"):
        Run(meta={"lr": (1, 2)}).save(tmp_path / "run.jsonl")
    with pytest.raises(TypeError, match="outcome.message is a bytes"):
        Run(outcome=Outcome(message=b"x")).save(tmp_path / "run.jsonl")


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ({"$film": {}}, "'\\$film' is no tag"),
        ({"$float": "1.5"}, "'\\$float' is no tag"),
        ({"$float": 1}, "'\\$float' is no tag"),
        ({"$step": 1}, "'\\$step' is no tag"),
        ({"$step": {"step": 1}, "x": 1}, "does not stand alone"),
        ({"$step": {"stepp": 1}}, "stepp"),
        ({"$step": {}}, "step"),
        ({"a": [{"$run": {"outcome": {}}}]}, "outcome: expected a Outcome, got {}"),
        ({"$run": {"events": {}}}, "events: expected a list"),
    ],
)
def test_a_tag_that_was_never_written_is_refused(plain, says):
    with pytest.raises(ValueError, match=says):
        decode(plain)


def test_a_trl_log_row_becomes_a_step_and_goes_back_under_trls_names():
    row = {
        "step": 4,
        "kl": 0.02,
        "grad_norm": 0.3,
        "completions/mean_length": 17.0,
        "rewards/accuracy/mean": 0.5,
        "epoch": 0.1,
    }
    assert "done" not in Step.from_log({**row, "done": True}).extra  # a flag is no measurement
    step = Step.from_log(row)
    assert (step.step, step.kl, step.mean_length, step["completions/mean_length"]) == (4, 0.02, 17.0, 17.0)
    assert step["rewards/accuracy/mean"] == 0.5
    assert row.items() <= step.log().items()


HEADER = '{"format": "labkit-run/2", "meta": {}}\n'
EVENT = '{"event": {"$step": {"step": 1}}}\n'
OUTCOME = '{"outcome": {"$outcome": {}}}\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("not json\n", "line 1"),
        ('{"format": "other/1"}\n', "line 1: expected format 'labkit-run/2', got 'other/1'"),
        ('{"format": "labkit-run/1", "meta": {}}\n', "labkit-run/1"),
        ('{"format": "labkit-run/2", "meta": 3}\n', "line 1: meta: expected a dict, got 3"),
        ('{"format": "labkit-run/2"}\n', "line 1: meta: expected a dict"),
        (HEADER, "cut short"),
        (HEADER + EVENT, "cut short"),
        (HEADER + '{"event": {"$outcome": {}}}\n', "cut short"),  # an outcome that is an event ends nothing
        (HEADER + EVENT[:-9] + "\n", "line 2"),
        (HEADER + '{"what": 1}\n', r"line 2: expected one key, 'event' or 'outcome', got \['what'\]"),
        (HEADER + '{"event": {"$stop": {}}}\n' + OUTCOME, "line 2: '\\$stop'"),
        (HEADER + '{"event": NaN}\n' + OUTCOME, "line 2: NaN is not JSON"),
        (HEADER + '{"outcome": {}}\n', "line 2: outcome: expected a Outcome"),
        (HEADER + "3\n", "line 2: expected an object, got 3"),
        (HEADER + HEADER + OUTCOME, "line 2: expected the header, then events"),
        (EVENT + OUTCOME, "line 1: expected the header"),
        (HEADER + OUTCOME + EVENT, "line 3: expected the header, then events"),
        (HEADER + '{"event": ' + "[" * 100_000 + "\n", "line 2"),
    ],
)
def test_an_unreadable_run_names_the_file_and_the_line(tmp_path, text, says):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=says) as caught:
        Run.load(path)
    assert "bad.jsonl" in str(caught.value)


def test_a_run_that_is_no_text_or_not_there_names_the_file(tmp_path):
    (tmp_path / "bad.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"bad.jsonl, line 1: 'utf-8' codec"):
        Run.load(tmp_path / "bad.jsonl")
    with pytest.raises(FileNotFoundError, match="gone.jsonl"):
        Run.load(tmp_path / "gone.jsonl")


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path):
    path = write_whole(tmp_path / "kept.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new \ud800")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["kept.txt"]


def test_an_unknown_column_names_the_columns_there_are():
    with pytest.raises(KeyError, match="grad_norm"):
        Step(step=1)["gradnorm"]
