"""Who wants one check gets one check: labkit works where nothing but its base requirements is installed."""

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent


def base_distributions() -> list[importlib.metadata.Distribution]:
    """What pip would install for pyproject's `dependencies`, and what those need in turn."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = [Requirement(line) for line in project["dependencies"]]
    chosen: dict[str, importlib.metadata.Distribution] = {}
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        needed = not requirement.marker or requirement.marker.evaluate({"extra": ""})
        if needed and name not in chosen:
            chosen[name] = importlib.metadata.distribution(name)
            waiting += map(Requirement, chosen[name].requires or [])
    return list(chosen.values())


@pytest.fixture(scope="module")
def run_there(tmp_path_factory):
    """Runs code where a folder like site-packages has labkit, its base requirements (links), and nothing else."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "labkit").symlink_to(ROOT / "labkit")
    for distribution in base_distributions():
        for top in {file.parts[0] for file in distribution.files if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists():
                (folder / top).symlink_to(distribution.locate_file(top))
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    def run(code: str) -> subprocess.CompletedProcess[str]:
        # -S: without the site-packages of the tests
        command = [sys.executable, "-S", "-c", code]
        return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=120)

    return run


def test_a_check_imports_and_judges_right_and_wrong_and_a_run_is_guarded_and_a_log_read(run_there):
    done = run_there("""
import importlib.util, sys
import torch
import labkit.callback, labkit.checklist, labkit.sandbox
from labkit import checks
from labkit.__main__ import main

def own(num_samples):
    return torch.randint(50, (num_samples, 4))

def copied(num_samples):
    rows = own(num_samples)
    rows[:, 0] = rows[0, 0]
    return rows

def loss(model, batch):
    place = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
    width = batch["completion_ids"].shape[1]
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"], position_ids=place).logits
    logp = logits[:, -width - 1 : -1].log_softmax(-1).gather(-1, batch["completion_ids"][..., None])[..., 0]
    ratio, gain = (logp - batch["old_logps"]).exp(), batch["advantages"][:, None]
    per_token = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
    return (per_token * batch["completion_mask"]).sum() / batch["num_items_in_batch"]

print([name for name in ("matplotlib", "jupyterlab", "accelerate") if importlib.util.find_spec(name)])
print(bool(checks.first_token(own)), bool(checks.first_token(copied)), bool(checks.grpo_step(loss, expect="DAPO")))
sys.exit(main(["triage", "-"]))
""")
    lines = done.stdout.splitlines()
    assert lines[:2] == ["[]", "True False True"], done.stderr
    assert done.returncode == 2 and "is empty" in done.stderr, done.stderr


def test_a_room_of_the_course_says_what_to_install(run_there):
    done = run_there("import sys; from labkit.__main__ import main; sys.exit(main(['course', '00']))")
    assert done.returncode == 2 and "pip install -e '.[course]'" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
