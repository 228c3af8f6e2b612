import json
import sys

import pytest

from labkit import doctor
from labkit.__main__ import main


def by_name():
    return {finding.name: finding for finding in doctor.examine()}


def test_this_machine_passes_and_the_report_names_versions(capsys):
    import torch

    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert torch.__version__ in next(c["measured"] for c in report["checks"] if c["name"] == "torch")


@pytest.mark.parametrize(
    "code, says",
    [
        ("raise ImportError('libcudart.so.13: cannot open shared object file')", "libcudart"),
        ("raise SystemExit(0)", "exit code 0"),
        ("import os; os._exit(7)", "exit code 7"),
        ("print('hello')\nclass version: cuda = None", "did not answer"),
    ],
)
def test_a_torch_that_cannot_answer_is_a_finding_with_a_way_out(monkeypatch, tmp_path, capsys, code, says):
    (tmp_path / "torch.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finding = by_name()["torch"]
    assert finding.level == "stop" and finding.way_out
    assert "torch did not answer" in finding.measured and says in finding.measured
    assert main(["doctor"]) == 1 and "1 failed" in capsys.readouterr().out


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
    monkeypatch.setattr(doctor, "version", lambda package: None if package == name else real(package))
    monkeypatch.setattr(doctor, "ask_torch", dict)
    finding = by_name()["packages"]
    assert finding.level == level and name in finding.measured and way_out in finding.way_out


def test_the_requirements_of_a_copied_checkout_are_those_of_an_installed_one(monkeypatch):
    monkeypatch.setattr(doctor, "ask_torch", dict)
    installed = by_name()["packages"]
    monkeypatch.setattr(doctor, "DISTRIBUTION", "not-installed-anywhere")
    assert by_name()["packages"] == installed and "papermill" in installed.measured


def test_what_cannot_be_read_is_a_finding_and_not_the_end(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "ask_torch", lambda: {"torch": "2"})
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    findings = by_name()
    assert findings["machine"].level == findings["folder"].level == findings["torch"].level == "stop"
    assert "psutil" in findings["machine"].measured and "FileNotFoundError" in findings["folder"].measured
    assert findings["driver"].measured == "none" and "3 failed" in doctor.report(list(findings.values()))
