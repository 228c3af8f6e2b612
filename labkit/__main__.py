"""The `labkit` command. It parses, calls, and turns an expected error into one line; it computes nothing."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, where argparse prints the usage above it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser() -> Parser:
    """The commands and their options."""
    top = Parser(
        prog="labkit",
        description="The GRPO failure lab: watch training fail, find the cause, apply the fix.",
        epilog="tab completion: labkit completion bash >> ~/.bashrc   (or zsh, fish, tcsh)",
    )
    from . import __version__

    top.add_argument("--version", action="version", version=f"labkit {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text)

    doctor = command("doctor", "check this machine")
    doctor.add_argument("--json", action="store_true", help="print the checks as JSON")
    doctor.add_argument(
        "--loaded",
        nargs="*",
        metavar="MODULE",
        help="in place of the checks: which copy of these modules a new process imports; default: those around here",
    )

    course = command("course", "run lessons headless and check every verdict; exit code 1: one fails")
    course.add_argument("numbers", nargs="*", metavar="NN", help="lesson numbers, for example 01 03 (default: all)")
    course.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="default: auto")
    course.add_argument("--seed", type=int, default=0, help="seed of every run (default: 0)")
    course.add_argument("--model", help="policy for lessons that take one: tiny, a local folder, or a hub name")
    course.add_argument("--out", type=Path, default=Path("out/course"), metavar="DIR", help="executed copies")
    course.add_argument("--notebooks", metavar="DIR", help="where the lessons are (default: ./notebooks)")
    course.add_argument(
        "--json", type=Path, dest="json_file", metavar="FILE", help="write lessons, verdicts and environment as JSON"
    )
    course.add_argument("--record", action="store_true", help="write recordings for readers without a GPU (needs CUDA)")
    course.add_argument("--jobs", type=int, metavar="N", help="lessons side by side (default: as many as have room)")

    where = "tiny, a local folder, or a hub name (default: tiny)"
    train = command("train", "one GRPO run in the sandbox, printed step by step")
    train.add_argument("--model", dest="policy", default="tiny", help=where)
    train.add_argument("--task", default="add", help="add, max, copy, or several with commas (default: add)")
    train.add_argument("--device", default="auto", metavar="auto|cpu|cuda")
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--rounds", type=int, default=12, help="rollout rounds (default: 12)")
    train.add_argument("--prompts", type=int, default=8, help="prompts per round (default: 8)")
    train.add_argument("--group", type=int, dest="num_samples", default=8, help="completions per prompt (default: 8)")
    train.add_argument("--mu", type=int, default=4, help="inner updates per round (default: 4)")
    train.add_argument("--lr", type=float, default=5e-5, help="learning rate (default: 5e-5)")
    train.add_argument("--beta", type=float, default=0.04, help="weight of the KL term (default: 0.04)")
    train.add_argument("--temperature", type=float, default=1.0)
    train.add_argument("--exam", action="store_true", help="print the chance of a right answer, round by round")
    train.add_argument("--timeout", type=float, default=600.0, help="seconds until the run is stopped (default: 600)")
    train.add_argument("--save", type=Path, metavar="FILE", help="save the run as JSON lines")
    train.add_argument("--json", action="store_true", help="print each step as a JSON line with TRL's names")

    triage = command("triage", "the likely causes of what a log shows; exit code 1: one to act on, 2: no log")
    triage.add_argument("source", nargs="+", metavar="LOG", help="log, captured stderr, or saved run; -: a pipe")
    triage.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the run: beta=0, top_p=0.9, ..."
    )
    triage.add_argument("--json", action="store_true", help="print the diagnosis as JSON")

    preflight = command("preflight", "a checklist before a run; exit code 1: an item says stop")
    preflight.add_argument("--model", default="tiny", help=where)
    preflight.add_argument("--config", type=Path, metavar="FILE", help="the trainer's arguments as a JSON object")
    preflight.add_argument(
        "--prompt", action="append", default=[], help="sample one group for this prompt; may be given twice"
    )

    lab = command("lab", "open JupyterLab on a lesson, in a copy of your own: my-notebooks, beside the lessons")
    lab.add_argument("lesson", nargs="?", default="00", metavar="NN", help="lesson number (default: 00)")
    lab.add_argument("--notebooks", metavar="DIR", help="where the lessons are (default: ./notebooks)")
    lab.add_argument("--no-browser", action="store_true", help="print the address, and open no window")
    lab.add_argument("--port", type=int, metavar="N", help="listen on this port (default: the first free one)")

    reset = command("reset", "begin a page of your copy anew; yours is kept beside it")
    reset.add_argument("lesson", metavar="NN", help="lesson number, for example 02 or 00-more")
    reset.add_argument("--notebooks", metavar="DIR", help="where the lessons are (default: ./notebooks)")

    progress = command("progress", "what you have solved, and which page is next")
    progress.add_argument("--notebooks", metavar="DIR", help="where the lessons are (default: ./notebooks)")
    progress.add_argument("--json", action="store_true", help="print it as JSON")
    progress.add_argument(
        "--class", dest="root", type=Path, metavar="DIR", help="sum up a class: a folder in DIR for each learner"
    )
    progress.add_argument("--picture", type=Path, metavar="FILE.png", help="with --class: draw learners by pages")

    completion = command("completion", "print a tab-completion script")
    completion.add_argument("shell", choices=["bash", "zsh", "fish", "tcsh"])
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0 well, 1 something failed, 2 bad input, 130 interrupted."""
    args = parser().parse_args(argv)
    try:
        return _COMMANDS[args.command](args)
    except BrokenPipeError:  # the reader (head, say) has gone
        sys.stderr.close()
        return 0
    except (ValueError, OSError) as error:
        print(f"labkit {args.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"labkit {args.command}: interrupted", file=sys.stderr)
        return 130


def _doctor(args: argparse.Namespace) -> int:
    from . import doctor

    if args.loaded is not None:
        return _loaded(args.loaded, args.json)
    findings = doctor.examine()
    print(doctor.as_json(findings) if args.json else doctor.report(findings))
    return int(any(finding.level == "stop" for finding in findings))


def _loaded(modules: Sequence[str], as_json: bool) -> int:
    from dataclasses import asdict

    from . import doctor

    sys.path[:0] = [os.getcwd()]  # as a kernel has it
    report = doctor.importable(*modules)
    print(json.dumps({"word": report.word, **asdict(report)}, indent=1) if as_json else report)
    if not as_json:
        names = ", ".join(f'"{name}"' for name in modules)
        print("This is what a process started now would import. A running kernel is another process: no command can")
        print(f"look into it. In a cell of it: import labkit; print(labkit.doctor.loaded({names}))")
    return int(not report)


def _course(args: argparse.Namespace) -> int:
    from . import course

    _check_writable("--out", args.out / "a notebook")
    _check_writable("--json", args.json_file)
    return course.main(**_settings(args))


def _settings(args: argparse.Namespace, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The options of the command, under the names of the function that does it."""
    return {name: value for name, value in vars(args).items() if name not in ("command", *without)}


def _train(args: argparse.Namespace) -> int:
    from . import sandbox

    _check_writable("--save", args.save)
    settings = _settings(args, without=("save", "json"))
    settings["task"] = [t for t in args.task.split(",") if t]
    try:
        run = sandbox.run(_train_steps, on_event=_print_json if args.json else _print_event, **settings)
    except sandbox.SandboxError as error:
        raise OSError(str(error)) from None
    # A setting that cannot be: there is nothing to save.
    if run.outcome.exception == "ValueError" and not run.events:
        raise ValueError(run.outcome.message)
    if args.save:
        run.save(args.save)
    if run.outcome:
        return 0
    message = " ".join(run.outcome.message.split())
    print(f"labkit train: ended with {run.outcome.signature}: {message}", file=sys.stderr)
    return 1


def _train_steps(task: list[str], prompts: int, num_samples: int, temperature: float, **settings: Any) -> Iterator[Any]:
    # In the child: torch is imported there only.
    from labkit.grpo import Sampling, train

    sampling = Sampling(prompts=prompts, num_samples=num_samples, temperature=temperature)
    yield from train(task, sampling=sampling, **settings)


def _print_json(event: Any) -> None:
    from .events import Exam

    if isinstance(event, Exam):
        row = {"round": event.round, **{f"exam/{family}": chance for family, chance in event.chances.items()}}
    else:
        row = event.log()
    print(json.dumps(row), flush=True)


def _print_event(event: Any) -> None:
    from .events import Exam

    if isinstance(event, Exam):
        chances = ", ".join(f"{family} {chance:.3f}" for family, chance in event.chances.items())
        line = f"after {event.round} rounds, chance of a right answer: {chances}"
    else:
        line = f"round {event.round}  step {event.step:4d}  reward {event.reward:.3f}  KL {event.kl:.4f}  "
        line += f"grad norm {event.grad_norm:.3g}{'  skipped' if event.skipped else ''}"
    print(line, flush=True)


def _needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ValueError(f"needs {package}; pip install {package}")


def _check_writable(option: str, path: Path | None) -> None:
    """Raises: ValueError when the file could not be written, before the work whose result would go there."""
    if path is None:
        return
    place = next(folder for folder in path.absolute().parents if folder.exists())
    if path.is_dir() or not place.is_dir() or not os.access(place, os.W_OK):
        raise ValueError(f"{option}: cannot write {path.name} in {path.parent}; name another place")


def _triage(args: argparse.Namespace) -> int:
    from .triage import diagnose

    if wrong := [pair for pair in args.set if "=" not in pair]:
        raise ValueError(f"--set: expected NAME=VALUE, got {wrong[0]!r}")
    sources = [name if name == "-" else Path(name) for name in args.source]
    diagnosis = diagnose(sources, dict(pair.split("=", 1) for pair in args.set))
    if diagnosis.reading.lines == 0 and diagnosis.notes:
        raise ValueError(diagnosis.notes[0])
    if args.json:
        print(diagnosis.to_json())
        return int(bool(diagnosis))
    terminal = sys.stdout.isatty()
    width = min(shutil.get_terminal_size().columns, 110) if terminal else 110
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    print(diagnosis.text(width, colour=terminal and not plain))
    return int(bool(diagnosis))


def _preflight(args: argparse.Namespace) -> int:
    config = json.loads(args.config.read_text(encoding="utf-8")) if args.config else {}
    if not isinstance(config, dict):
        raise ValueError(f"--config: expected a JSON object of arguments, got {type(config).__name__}")

    from labkit.grpo import policy

    from . import checklist

    loaded = policy.load(args.model)
    report = checklist.preflight(loaded.model, loaded.tokenizer, argparse.Namespace(**config), prompts=args.prompt)
    print(report)
    return int(not report)


def _lab(args: argparse.Namespace) -> int:
    from . import course, lessons

    _needs("jupyterlab")
    folder = lessons.folder(args.notebooks)
    lesson = lessons.choose(folder, [args.lesson])[0]
    try:
        changes = course.bring_up_to_date(folder)
    except OSError as error:
        way_out = "copy the lessons to a place of yours, and name it with --notebooks"
        raise ValueError(f"your copy of the lessons cannot be written ({error}); {way_out}") from None
    if str(changes):
        print(changes, flush=True)
    page = changes.copy / lesson.path.relative_to(folder)
    return course.start_lab(page, browser=not args.no_browser, port=args.port)


def _reset(args: argparse.Namespace) -> int:
    from . import course, lessons

    folder = lessons.folder(args.notebooks)
    print(course.reset(lessons.choose(folder, [args.lesson])[0], folder))
    return 0


def _progress(args: argparse.Namespace) -> int:
    from . import course, lessons

    folder = lessons.folder(args.notebooks)
    width = shutil.get_terminal_size((100, 24)).columns
    if args.picture:
        if not args.root or args.picture.suffix != ".png":
            raise ValueError(f"--picture {args.picture}: expected a name that ends in .png, and --class DIR beside it")
        _needs("matplotlib")
        _check_writable("--picture", args.picture)
    if args.root:
        print(course.progress_of_class(args.root, folder, args.json, args.picture, width))
        return 0
    print(course.progress_of_one(folder, args.json, width))
    return 0


def _completion(args: argparse.Namespace) -> int:
    _needs("shtab")
    import shtab

    if args.shell not in shtab.SUPPORTED_SHELLS:
        raise ValueError(f"{args.shell}: shtab {shtab.__version__} does not know it; pip install -U shtab")
    top = parser()
    for action in top._subparsers._group_actions[0].choices.values():  # type: ignore[union-attr,attr-defined]
        for option in action._actions:
            if option.dest in _FILES:
                option.complete = shtab.FILE
            elif option.dest in _FOLDERS:
                option.complete = shtab.DIRECTORY
    script = shtab.complete(top, args.shell)
    # Without `default` bash completes no file names where the script has nothing to say.
    print(script.replace("complete -o bashdefault -F", "complete -o bashdefault -o default -F"))
    return 0


# What a tab completes with names of files, and of folders: `dest` of an option.
_FILES = {"source", "json_file", "save", "config", "picture"}
_FOLDERS = {"out", "notebooks", "model", "policy", "root"}


_COMMANDS = {
    "doctor": _doctor,
    "course": _course,
    "train": _train,
    "triage": _triage,
    "preflight": _preflight,
    "lab": _lab,
    "reset": _reset,
    "progress": _progress,
    "completion": _completion,
}


if __name__ == "__main__":
    sys.exit(main())
