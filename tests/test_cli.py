import json
import shutil
import subprocess
import sys

import pytest
import torch

from labkit import doctor, sandbox
from labkit.__main__ import main
from labkit.events import Run

ROW = "{'loss': 0.0, 'grad_norm': 0.0, 'reward': 0.5, 'reward_std': 0.4, 'kl': 0.0}\n" * 3
HEALTHY = ROW.replace("'grad_norm': 0.0", "'grad_norm': 0.4")


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs the command in this process, in a folder of its own: its exit code, its output, its one line of error."""
    monkeypatch.chdir(tmp_path)

    def run(*args):
        try:
            code = main(args)
        except SystemExit as error:  # from argparse
            code = error.code
        output, error = capsys.readouterr()
        assert code != 2 or error.count("\n") == 1
        return code, output, error

    return run


def test_help_lists_the_commands(command):
    code, output, _ = command("--help")
    assert code == 0
    assert all(word in output for word in ("doctor", "course", "train", "triage", "preflight", "lab", "completion"))


FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "fish": "__fish_complete_path", "tcsh": "f:"}


@pytest.mark.parametrize("shell", FILES)
def test_a_completion_script_names_the_commands_and_knows_where_a_file_belongs(shell, command):
    code, output, _ = command("completion", shell)
    assert code == 0 and "doctor" in output and "course" in output
    assert FILES[shell] in output or shell == "tcsh"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("triage READ", ["README.txt"]),
        ("triage sub/a", ["sub/a.log"]),
        ("preflight --config READ", ["README.txt"]),
        ("course --out s", ["sub"]),
        ("tri", ["triage"]),
    ],
)
def test_in_bash_a_tab_completes_commands_and_file_names(words, completed, tmp_path, command):
    (tmp_path / "sub").mkdir()
    for name in ("README.txt", "sub/a.log", "s.txt"):
        (tmp_path / name).touch()
    _, script, _ = command("completion", "bash")
    typed = ["labkit", *words.split()]
    ask = f"COMP_WORDS=({' '.join(typed)}); COMP_CWORD={len(typed) - 1}; _shtab_labkit; complete -p labkit\n"
    ask += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], cwd=tmp_path, capture_output=True, text=True)
    registered, *found = done.stdout.splitlines()
    assert "-o default" in registered and found == completed, done.stderr


def test_a_training_run_prints_steps_with_trls_names_and_saves_itself(tmp_path, command):
    code, output, _ = command("train", "--rounds", "2", "--mu", "2", "--json", "--exam", "--save", "run.jsonl")
    rows = [json.loads(line) for line in output.splitlines()]
    exams = [row for row in rows if "exam/add" in row]
    steps = [row for row in rows if "exam/add" not in row]
    assert [row["round"] for row in exams] == [0, 1, 2] and 0.4 < exams[0]["exam/add"] < 0.5
    assert code == 0 and [row["step"] for row in steps] == [1, 2, 3, 4]
    assert {"kl", "grad_norm", "completions/mean_length", "reward_std"} <= set(steps[0])
    assert Run.load(tmp_path / "run.jsonl").rounds == 2


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["train", "--lr", "-1"], "lr = -1.0"),
        (["train", "--group", "1"], "num_samples = 1"),
        (["train", "--task", "mul"], "task 'mul'"),
        (["train", "--task", ""], "task: got an empty list"),
        (["train", "--model", "./missing-folder"], "model './missing-folder' cannot be loaded"),
        (["train", "--seed", "1" + 30 * "0"], "labkit train: "),
        (["train", "--rounds", "x"], "argument --rounds: invalid int value: 'x'"),
        (["train", "--timeout", "nan"], "timeout: expected seconds above 0"),
        (["train", "--device", "cuda"], "sees no CUDA device"),
        (["train", "--save", "."], "--save: cannot write"),
        (["train", "--save", "run.log/run.jsonl"], "--save: cannot write run.jsonl in run.log"),
        (["course", "77"], "lesson '77': expected one of 01"),
        (["course", "--device", "tpu"], "invalid choice: 'tpu'"),
        (["course", "01", "--device", "cuda"], "sees no GPU"),
        (["course", "01", "--record"], "sees no GPU"),
        (["course", "01", "--record", "--device", "cpu"], "use --device cuda"),
        (["course", "--notebooks", "nowhere"], "no lessons in nowhere"),
        (["course", "02"], "02_garbage.ipynb: cannot be read"),
        (["course", "01", "--out", "run.log/sub"], "--out: cannot write"),
        (["course", "01", "--out", "notebooks"], "--out notebooks: the lessons themselves are there"),
        (["course", "01", "--json", "notebooks"], "--json: cannot write notebooks in .; name another place"),
        (["course", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["triage", "nowhere.log"], "No such file"),
        (["triage", "run.log", "--set", "beta"], "--set: expected NAME=VALUE, got 'beta'"),
        (["preflight", "--config", "list.json"], "--config: expected a JSON object"),
        (["lab", "99"], "lesson '99'"),
        (["lab", "00", "01"], "01; see labkit --help"),
        (["tarin"], "tarin"),
        (["completion", "nushell"], "nushell"),
        ([], "--help"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(tmp_path, command, monkeypatch, args, says):
    if args == ["train", "--device", "cuda"] and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    monkeypatch.setattr(doctor, "ask_torch", dict)
    (tmp_path / "notebooks").mkdir()
    files = {"notebooks/01_fine.ipynb": '{"cells": []}', "notebooks/02_garbage.ipynb": "{", "list.json": "[1]"}
    files |= {"run.log": ROW}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    if args and args[0] == "train" and "--save" not in args:
        args = [*args, "--save", "run.jsonl"]
    code, output, error = command(*args)
    assert code == 2 and says in error and not output
    after = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == files


def test_a_sandbox_that_cannot_start_is_one_line(monkeypatch, command):
    def cannot(*args, **settings):
        raise sandbox.SandboxError("the sandbox could not start\na process")

    monkeypatch.setattr(sandbox, "run", cannot)
    assert command("train") == (2, "", "labkit train: the sandbox could not start a process\n")


def test_without_jupyterlab_or_shtab_one_line_says_what_to_install(monkeypatch, command):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "shtab", None)
    for arguments, package in (["lab"], "jupyterlab"), (["completion", "bash"], "shtab"):
        code, _, error = command(*arguments)
        assert code == 2 and f"needs {package}; pip install {package}" in error


def test_triage_reads_files_and_a_pipe_and_says_by_its_code_whether_to_act(tmp_path, command):
    (tmp_path / "run.log").write_text(ROW)
    code, output, _ = command("triage", "run.log")
    assert code == 1 and "1. overwritten-or-lost-gradient" in output
    pipe = [sys.executable, "-m", "labkit", "triage", "-"]
    done = subprocess.run(pipe, input=HEALTHY, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0 and "healthy-normal" in done.stdout and done.stderr == ""
    _, output, _ = command("triage", "run.log", "--json", "--set", "beta=0")
    assert json.loads(output)["findings"][0]["cause"] == "overwritten-or-lost-gradient"


def test_preflight_reads_the_trainers_arguments_and_stops_where_they_do_not_fit(tmp_path, command):
    (tmp_path / "args.json").write_text('{"num_generations": 8, "per_device_train_batch_size": 12}')
    code, output, _ = command("preflight", "--config", "args.json")
    assert code == 1 and "stop  group: 12 completions" in output
