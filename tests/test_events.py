import json
import math

import pytest

from labkit.common import write_whole
from labkit.events import Outcome, Run, Step


def test_a_run_comes_back_from_disk_as_it_was_nan_and_infinity_included(tmp_path):
    steps = [
        Step(step=1, kl=0.0, grad_norm=1.5, extra={"kl/add": 0.25}),
        Step(step=2, round=2, grad_norm=math.inf, kl=math.nan),
    ]
    run = Run(
        [*steps, {"note": "kept"}],
        Outcome("exception:RuntimeError", 1, message="boom", seconds=0.5),
        {"seed": 3},
    )
    back = Run.load(run.save(tmp_path / "run.jsonl"))
    assert back.meta == {"seed": 3} and back.outcome == run.outcome and back.rounds == 2
    assert back["grad_norm"] == [1.5, math.inf]
    assert back["kl"][0] == 0.0 and math.isnan(back["kl"][1])
    assert back.steps[0]["kl/add"] == 0.25
    assert {"note": "kept"} in back.events


def test_every_line_of_a_saved_run_is_strict_json(tmp_path):
    path = Run([Step(step=1, grad_norm=math.inf)]).save(tmp_path / "run.jsonl")
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_trl_log_row_becomes_a_step_and_goes_back_under_trls_names():
    row = {
        "step": 4,
        "kl": 0.02,
        "grad_norm": 0.3,
        "completions/mean_length": 17.0,
        "rewards/accuracy/mean": 0.5,
        "epoch": 0.1,
    }
    step = Step.from_log(row)
    assert (step.step, step.kl, step.mean_length, step["completions/mean_length"]) == (4, 0.02, 17.0, 17.0)
    assert step["rewards/accuracy/mean"] == 0.5
    assert row.items() <= step.log().items()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("not json\n", "line 1"),
        ('{"format": "other/1"}\n', "labkit-run/1"),
        ('{"format": "labkit-run/1", "meta": {}}\n{"step": {"step": 1}}\n', "cut short"),
        ('{"format": "labkit-run/1", "meta": {}}\n{"what": 1}\n', "line 2"),
    ],
)
def test_an_unreadable_recording_names_the_file_and_the_line(tmp_path, text, says):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=says) as caught:
        Run.load(path)
    assert "bad.jsonl" in str(caught.value)


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path):
    path = write_whole(tmp_path / "kept.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new \ud800")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["kept.txt"]


def test_an_unknown_column_names_the_columns_there_are():
    with pytest.raises(KeyError, match="grad_norm"):
        Step(step=1)["gradnorm"]
