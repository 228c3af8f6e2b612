import json
import subprocess
import sys

from labkit import doctor


def test_this_machine_passes_and_the_report_names_versions():
    checks = doctor.examine()
    assert not [c for c in checks if c.status == "fail"], doctor.report(checks)
    import torch

    assert torch.__version__ in next(c.seen for c in checks if c.name == "torch")
    assert json.loads(doctor.as_json(checks))["ok"] is True


def test_a_torch_that_cannot_be_imported_is_a_finding_with_a_way_out(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = {c.name: c for c in doctor.examine()}
    assert found["torch"].status == "fail" and "libcudart" in found["torch"].seen and found["torch"].way_out
    assert "1 failed" in doctor.report(list(found.values()))


def test_a_missing_package_is_named_with_its_purpose(monkeypatch):
    real = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: None if name == "papermill" else real(name))
    check = next(c for c in doctor.examine() if c.name == "packages")
    assert (
        check.status == "fail" and "labkit course" in check.seen and check.way_out == "pip install papermill"
    )


def test_the_exit_code_is_zero_on_a_healthy_machine():
    done = subprocess.run(
        [sys.executable, "-m", "labkit", "doctor", "--json"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and json.loads(done.stdout)["checks"]
