"""The runs that the project makes itself: the page in the docs, and a sample of them made again."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.events import Run, Step

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def made(script):
    return script("triage/made_runs")


def test_the_page_says_what_was_asked_of_the_rules():
    page = (ROOT / "docs" / "made-runs.md").read_text(encoding="utf-8")
    right, total = map(int, re.search(r"Right first: (\d+) of (\d+)", page).groups())
    unseen, met = re.findall(r"^- (\d+) of (\d+) runs (that the rules had not met|by which)", page, re.MULTILINE)
    assert total >= 60 and right >= 0.9 * total
    assert int(unseen[0]) <= 2 and met[0] == "0" and unseen[1] == met[1] == "300"


def test_errors_that_a_machine_raises_here_are_named(made, tmp_path):
    """The quick ones, without a process of their own."""
    quick = {"rotary tables in float32", "a name of another branch", "room in pieces", "a batch too big"}
    for kind in made.KINDS:
        if kind.name in quick:
            assert made.answers(made.file_of(kind.name, 3, kind.make, tmp_path, 0))[:1] == [kind.cause], kind.name


def test_a_log_is_written_in_four_forms_and_made_only_once(made, tmp_path):
    run = Run([Step(n, loss=0.1, grad_norm=1.0, reward=0.5, reward_std=0.3, kl=0.01 * n) for n in range(1, 6)])
    calls = []
    for form, ending in enumerate((".jsonl", ".json", ".csv", ".log")):
        path = made.file_of(f"form {form}", 0, lambda seed: calls.append(seed) or run, tmp_path, form)
        assert path.suffix == ending and made.answers(path) == []
        assert made.file_of(f"form {form}", 0, lambda seed: calls.append(seed) or run, tmp_path, form) == path
    assert len(calls) == 4


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore")
def test_a_sample_of_each_kind_is_named_and_healthy_runs_raise_no_alarm(made, tmp_path):
    wrong = []
    for at, kind in enumerate(made.KINDS):
        found = made.answers(made.file_of(kind.name, 7, kind.make, tmp_path, at))
        wrong += [(kind.name, found)] * (found[:1] != [kind.cause])
    assert len(wrong) <= 0.1 * len(made.KINDS), wrong
    for seed in range(12):
        assert not made.diagnose(made.file_of("healthy", seed, made.healthy, tmp_path, seed))


READER = """
import resource, sys, time
from pathlib import Path
from labkit import triage
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = triage.diagnose(Path(sys.argv[1]))
print(found.findings[0].cause, len(found.reading.rows), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def large_log(path, size):
    """Printed rows glued to progress bars, among lines of something else; at the end, an explosion."""
    row = "'reward': 0.5, 'reward_std': 0.3, 'kl': 0.002, 'step'"
    step = 0
    with path.open("w") as file:
        while file.tell() < size:
            for _ in range(500):
                step += 4
                file.write(f"INFO rollout {step} done\n" * 3)
                file.write(f" 12%|### | {{'loss': 0.01, 'grad_norm': 1.{step % 10}, {row}: {step}}}\n")
        file.write(f"{{'loss': nan, 'grad_norm': nan, {row}: 99999999}}\n")
    return path


@pytest.mark.parametrize("megabytes", [4, pytest.param(1024, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_a_large_file_is_streamed_and_memory_stays_bounded(tmp_path, megabytes):
    path = large_log(tmp_path / "large.log", megabytes << 20)
    done = subprocess.run(
        [sys.executable, "-c", READER, str(path)], capture_output=True, text=True, cwd=ROOT, timeout=3000
    )
    assert done.returncode == 0, done.stderr
    cause, rows, grown = done.stdout.split()
    assert cause == "gradient-explosion" and 0 < int(rows) <= 40_000
    assert int(grown) < 200_000  # KiB, whatever the size of the file
