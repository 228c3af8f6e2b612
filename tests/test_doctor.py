import json
import subprocess
import sys

import pytest

from labkit import doctor


def test_this_machine_passes_and_the_report_names_versions():
    checks = doctor.examine()
    assert not [c for c in checks if c.level == "stop"], doctor.report(checks)
    import torch

    assert torch.__version__ in next(c.measured for c in checks if c.name == "torch")
    assert json.loads(doctor.as_json(checks))["ok"] is True


def test_a_torch_that_cannot_be_imported_is_a_finding_with_a_way_out(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = {c.name: c for c in doctor.examine()}
    assert found["torch"].level == "stop" and "libcudart" in found["torch"].measured and found["torch"].way_out
    assert "1 failed" in doctor.report(list(found.values()))


@pytest.mark.parametrize(
    "name, level, way_out",
    [
        ("papermill", "stop", ".[course]"),
        ("cloudpickle", "stop", "pip install cloudpickle"),
        ("jupyterlab", "look", ".[course]"),  # lessons run headless without it
    ],
)
def test_a_missing_package_is_named_with_what_installs_it(monkeypatch, name, level, way_out):
    real = doctor.version
    monkeypatch.setattr(doctor, "version", lambda asked: None if asked == name else real(asked))
    check = next(c for c in doctor.examine() if c.name == "packages")
    assert check.level == level and name in check.measured and way_out in check.way_out


def test_the_exit_code_is_zero_on_a_healthy_machine():
    done = subprocess.run(
        [sys.executable, "-m", "labkit", "doctor", "--json"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and json.loads(done.stdout)["checks"]


@pytest.mark.parametrize(
    "torch", ["raise SystemExit(0)", "import os; os._exit(7)", "print('hello')\nclass version: cuda = None"]
)
def test_a_torch_that_answers_nonsense_is_a_finding(monkeypatch, tmp_path, torch):
    (tmp_path / "torch.py").write_text(torch)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = {c.name: c for c in doctor.examine()}
    assert found["torch"].level == "stop" and "did not answer" in found["torch"].measured


def test_what_cannot_be_read_is_a_finding_and_not_the_end(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "ask_torch", lambda: {"torch": "2"})
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    found = {c.name: c for c in doctor.examine()}
    assert found["machine"].level == found["folder"].level == found["torch"].level == "stop"
    assert "psutil" in found["machine"].measured and "FileNotFoundError" in found["folder"].measured
    assert found["driver"].measured == "none" and "3 failed" in doctor.report(list(found.values()))
