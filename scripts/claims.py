"""What holds a lesson's verdicts: which mutant breaks each one, and how far each stays from tipping over.

    python scripts/claims.py mutants [NN ...]     verdict × mutant; exit 1 when a verdict survives every mutant
    python scripts/claims.py seeds [NN ...]       verdict × seed: the smallest margin, on seeds 0-19, 1 and 2 threads
    ... --write out/mutants.md                    the same table as Markdown, in a file; of the lessons named, if any

Mutants are in tests/notebooks/mutants/mNN.py: MUTANTS = {"name": [(old text, new text), ...]}, each old text standing
once in the lesson's code. Runs are processes of their own (tests/notebooks/claims.py), `--jobs` of them at a time; what
was run is kept in out/claims, until the lesson, labkit or the mutant changes.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import ascii_lowercase
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RUNNER = ROOT / "tests" / "notebooks" / "claims.py"
sys.path[:0] = [str(ROOT), str(RUNNER.parent)]

import claims  # noqa: E402

from labkit.common import number, write_whole  # noqa: E402
from labkit.lessons import choose  # noqa: E402

THIN = 1.25  # a margin below this factor is marked
CHUNK = 5  # seeds run one after the other in a process: the imports are a quarter of a run
ALONE = {"13"}  # lessons about what a process holds: one seed per process
NOT_COMPUTING = {"course", "display", "triage"}  # a change there changes no number of a lesson's runs
Job = tuple[str, str, int, int]  # lesson, mutant, seed, threads


def run(jobs: list[Job]) -> list[dict[str, Any]]:
    """Jobs that differ in their seed alone, in one process, each as the dict of a `claims.Made`.

    One that died says so in `errors`, as do those behind it.
    """
    lesson, mutant, _, threads = jobs[0]
    seeds = [str(seed) for _, _, seed, _ in jobs]
    command = [sys.executable, str(RUNNER), lesson, "--mutant", mutant, "--threads", str(threads), "--seed", *seeds]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    limit = 1800 * len(jobs)  # a page of a minute, on a machine that is busy with others
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )
    try:
        out, words = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        out, words = process.communicate()[0], f"ran past {limit} s"
    made = [json.loads(line) for line in out.splitlines() if line.startswith('{"lesson"')][: len(jobs)]
    died = {"lesson": lesson, "claims": [], "errors": [words.strip()[-300:]], "seconds": 0.0}
    return made + [died] * (len(jobs) - len(made))


@functools.cache
def code_of(lesson: str) -> str:
    package = [
        path.read_text() for path in sorted((ROOT / "labkit").rglob("*.py")) if path.parts[-2] not in NOT_COMPUTING
    ]
    of_others = re.compile(rf"lesson_(?!{lesson[:2]})\d\d")  # what pages share counts, what another page has does not
    folder = ROOT / "notebooks" / "props"
    props = [path.read_text() for path in sorted(folder.rglob("*.py")) if not of_others.match(path.name)]
    return "\n".join([*package, *props, *(source for _, _, source in claims.code_of(lesson))])


def place(job: Job) -> Path:
    """Where a run is kept, under a name made of all that it depends on: a sweep that was stopped goes on."""
    lesson, mutant = job[:2]
    edits = claims.mutants_of(lesson)[mutant] if mutant else []
    name = hashlib.sha256(repr((code_of(lesson), edits, job)).encode()).hexdigest()[:20]
    return ROOT / "out" / "claims" / f"{lesson}-{name}.json"


def run_all(jobs: list[Job], at_once: int, told: Callable[[Job, dict[str, Any]], None]) -> list[dict[str, Any]]:
    """All jobs, `at_once` processes at a time, in the order asked for."""

    def one(chunk: list[Job]) -> list[dict[str, Any]]:
        kept = {job: json.loads(at.read_text()) for job in chunk if (at := place(job)).is_file()}
        missing = [job for job in chunk if job not in kept]
        for job, made in zip(missing, run(missing) if missing else [], strict=True):
            told(job, made)
            kept[job] = made
            if made["claims"]:
                write_whole(place(job), json.dumps(made))
        return [kept[job] for job in chunk]

    alike = [list(group) for _, group in itertools.groupby(jobs, lambda job: (job[0], job[1], job[3]))]
    sizes = {lesson: 1 if lesson in ALONE else CHUNK for lesson, *_ in jobs}
    chunks = [g[at : at + sizes[g[0][0]]] for g in alike for at in range(0, len(g), sizes[g[0][0]])]
    with ThreadPoolExecutor(at_once) as pool:
        return [made for chunk in pool.map(one, chunks) for made in chunk]


def progress(job: Job, made: dict[str, Any]) -> None:
    lesson, mutant, seed, threads = job
    failed = sum(not c["passed"] for c in made["claims"])
    what = mutant or f"seed {seed}, {threads} thread{'s' * (threads > 1)}"
    note = f"; {made['errors'][0]}" if made["errors"] else ""
    print(f"  {lesson} {what}: {failed} of {len(made['claims'])} fail, {made['seconds']:.0f} s{note}", file=sys.stderr)


def by_claim(made: dict[str, Any]) -> dict[str, bool]:
    """Claim -> did it hold; a claim made twice holds when it held each time."""
    held: dict[str, bool] = {}
    for c in made["claims"]:
        held[c["claim"]] = held.get(c["claim"], True) and c["passed"]
    return held


def with_sections(old: str, new: str) -> str:
    """The old file with the sections of the lessons that stand in the new text; the new text where there was none."""
    head, *sections = old.split("\n## Lesson ")
    if not sections:
        return new
    sections += new.split("\n## Lesson ")[1:]  # a section of the same lesson goes over the old one
    kept = {section.splitlines()[0]: section.rstrip("\n") for section in sections}  # "03", "03-more"; "08, one thread"
    return "\n## Lesson ".join([head, *(kept[number] + "\n" for number in sorted(kept))])


def markdown(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)]


# ------------------------------------------------------------------------------------------------ mutants


def mutants(lessons: list[str], at_once: int) -> tuple[str, bool]:
    """The tables as Markdown, and whether every verdict of every lesson fails under at least one mutant."""
    parts, good = [MUTANTS_HEAD], True
    for lesson in lessons:
        names = list(claims.mutants_of(lesson))
        runs = run_all([(lesson, name, 0, 1) for name in ("", *names)], at_once, progress)
        sound, broken = by_claim(runs[0]), [by_claim(r) for r in runs[1:]]
        kills = {claim: [held.get(claim) is False for held in broken] for claim in sound}
        idle = [name for at, name in enumerate(names) if not any(row[at] for row in kills.values())]
        survivors = [claim for claim, row in kills.items() if not any(row)]
        wrong = [claim for claim, held in sound.items() if not held] + runs[0]["errors"]
        good &= not survivors and not wrong and not idle
        parts.append(f"\n## Lesson {lesson}\n")
        letters = ["".join(pair) for pair in itertools.product(("", *ascii_lowercase), ascii_lowercase)][: len(names)]
        parts += [f"{letter}. {name}" for letter, name in zip(letters, names, strict=True)]
        table = [[claim.replace("|", "\\|"), *("×" if hit else "" for hit in row)] for claim, row in kills.items()]
        parts += ["", *markdown(["verdict", *letters], table)]
        caught = len(sound) - len(survivors)
        total = f"{caught} of {len(sound)} verdicts fail under at least one of {len(names)} mutants."
        parts += ["", total]
        for words, found in (("Survives every mutant", survivors), ("Breaks nothing", idle), ("Unmutated", wrong)):
            parts += [f"**{words}:** {one}" for one in found]
    return "\n".join(parts) + "\n", good


MUTANTS_HEAD = """# Every verdict, and the mutants it fails under

Made by `make mutants`. A column is one deliberate mistake in the lesson's code (bug and fix exchanged, a control
dropped, a column exchanged, a sound function where a broken one is meant); × marks the verdicts that noticed it."""


# ------------------------------------------------------------------------------------------------ seeds


def seeds(lessons: list[str], at_once: int, which: list[int], threads: list[int]) -> tuple[str, bool]:
    """The tables as Markdown, and whether every verdict held in every run."""
    parts, good = ([SEEDS_HEAD.format(first=which[0], last=which[-1], threads=" and ".join(map(str, threads)))], True)
    for lesson in lessons:
        jobs = [(lesson, "", seed, t) for t in threads for seed in which]
        runs = run_all(jobs, at_once, progress)
        rows, failed = [], 0
        for claim in dict.fromkeys(c["claim"] for r in runs for c in r["claims"]):
            told = [(job, c) for job, r in zip(jobs, runs, strict=True) for c in r["claims"] if c["claim"] == claim]
            missed = [f"{job[2]}/{job[3]}" for job, c in told if not c["passed"]]
            missed += [
                f"{job[2]}/{job[3]} not made" for job, r in zip(jobs, runs, strict=True) if claim not in by_claim(r)
            ]
            failed += bool(missed)
            rows.append([claim.replace("|", "\\|"), *closest(told), ", ".join(missed) or ""])
        good &= not failed
        parts += [f"\n## Lesson {lesson}\n", *markdown(["verdict", "closest comparison", "margin", "fails on"], rows)]
        parts += ["", f"{len(rows) - failed} of {len(rows)} verdicts hold in all {len(jobs)} runs."]
    return "\n".join(parts) + "\n", good


def closest(told: list[tuple[Job, dict[str, Any]]]) -> list[str]:
    """The comparison that came closest to tipping over, with its values and its run; and its margin as a factor."""
    best: tuple[float, str] = (math.inf, "exact or structural")
    for job, claim in told:
        for c in claim["compared"]:
            made = claims.Compared(**c)
            if made.margin < best[0]:
                words = f"`{made.text}`: {number(made.left)} and {number(made.right)} (seed {job[2]}, {job[3]})"
                best = (made.margin, words.replace("|", "\\|"))
    margin = best[0]
    shown = "" if math.isinf(margin) else f"{margin:.3g}" + (" thin" if margin < THIN else "")
    return [best[1], shown]


SEEDS_HEAD = """# Every verdict, and how far it stays from tipping over

Made by `make seeds`, on seeds {first} to {last}, torch threads: {threads}. For each verdict the comparison of its
condition that came closest over all runs, both its values, and the margin: the larger over the smaller. Conditions
without an ordered comparison (an equality, a count, a signature) have none. "Thin" is below a factor of 1.25; a claim
that two numbers are the same within a hundredth is thin by its nature, and says so by its limit."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["mutants", "seeds"])
    parser.add_argument("lessons", nargs="*", metavar="NN", help="default: all")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time (default: one per core)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(20)), metavar="N")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write the table to this file")
    args = parser.parse_args()
    lessons = args.lessons or [lesson.number for lesson in choose(claims.FOLDER)]
    if args.table == "mutants" and not args.lessons:
        lessons = [lesson for lesson in lessons if claims.mutants_of(lesson)]
    if args.table == "mutants":
        text, good = mutants(lessons, args.jobs)
    else:
        text, good = seeds(lessons, args.jobs, args.seeds, args.threads)
    print(text)
    if args.write:
        old = args.write.read_text() if args.lessons and args.write.is_file() else ""
        write_whole(args.write, with_sections(old, text))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
