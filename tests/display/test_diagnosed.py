"""The picture of a diagnosis: what was logged, the step of the finding marked."""

import pytest

import labkit
from labkit.display.diagnosed import drawing


def text(steps, **changes):
    rows = [{"step": at, "grad_norm": 0.5, "kl": 0.01 * at, "reward": 0.3} for at in range(1, steps + 1)]
    rows[-3 if steps > 3 else -1] |= changes
    return "\n".join(map(str, rows))


def test_the_step_of_the_finding_is_marked(tmp_path, monkeypatch):
    drawn = []
    picture = pytest.importorskip("labkit.display.diagnosed").picture
    monkeypatch.setattr("labkit.display.diagnosed.picture", lambda *a, **k: drawn.append(k) or picture(*a, **k))
    diagnosis = labkit.diagnose(text(30, grad_norm=4e6))
    drawing(diagnosis).save(tmp_path / "signals.png")
    assert drawn[0]["marks"] == {28: "gradient-explosion"} and drawn[0]["panels"] == ["grad_norm", "kl", "reward"]
    assert drawn[0]["title"].startswith("gradient-explosion: ")
    assert (tmp_path / "signals.png").read_bytes().startswith(b"\x89PNG")


def test_rows_without_steps_are_counted_and_two_rows_are_no_picture():
    rows = "\n".join(str({"loss": 0.1, "kl": 0.1}) for _ in range(5))
    assert drawing(labkit.diagnose(rows)) is not None
    assert drawing(labkit.diagnose(text(2))) is None
    assert drawing(labkit.diagnose("CUDA out of memory. Tried to allocate 2.00 GiB.")) is None
