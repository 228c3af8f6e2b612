import json
import subprocess
import sys

import pytest

from labkit.events import Run


def labkit(*args, **kw):
    return subprocess.run(
        [sys.executable, "-m", "labkit", *args], capture_output=True, text=True, timeout=170, **kw
    )


def test_help_lists_the_commands_and_needs_no_torch():
    done = labkit("--help")
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("doctor", "course", "train", "lab", "completion"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_a_completion_script_names_the_commands(shell):
    done = labkit("completion", shell)
    assert done.returncode == 0 and "doctor" in done.stdout and "course" in done.stdout


def test_a_training_run_prints_steps_with_trls_names_and_saves_itself(tmp_path):
    done = labkit(
        "train",
        "--rounds",
        "2",
        "--mu",
        "2",
        "--json",
        "--save",
        "run.jsonl",
        "--device",
        "cpu",
        cwd=tmp_path,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and [r["step"] for r in rows] == [1, 2, 3, 4]
    assert {"kl", "grad_norm", "completions/mean_length", "reward_std"} <= set(rows[0])
    assert Run.load(tmp_path / "run.jsonl").rounds == 2


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--lr", "-1"], "lr = -1.0"),
        (["--group", "1"], "num_samples = 1"),
        (["--prompt-file", "empty.txt"], "prompts: got an empty list"),
        (["--prompt-file", "absent.txt"], "absent.txt: no such file"),
        (["--task", "mul"], "task 'mul'"),
        (["--device", "tpu"], "device 'tpu'"),
        (["--model", "no/such-model"], "Ways out: --model tiny"),
        (["--temperature", "0"], "temperature = 0.0"),
    ],
)
def test_a_setting_that_cannot_be_is_one_line_and_no_file(tmp_path, args, says):
    (tmp_path / "empty.txt").write_text("\n")
    done = labkit("train", *args, "--save", "run.jsonl", cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert not (tmp_path / "run.jsonl").exists()


def test_an_unknown_command_is_refused_by_name():
    done = labkit("tarin")
    assert done.returncode == 2 and "tarin" in done.stderr
