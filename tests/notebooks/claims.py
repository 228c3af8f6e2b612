"""Run a lesson's code cells in this process, and collect every verdict with the comparison it makes.

    python tests/notebooks/claims.py 03 --seed 7 --threads 1        one run, as one line of JSON
    python tests/notebooks/claims.py 03 --seed 0 1 2                three in turn, with the imports paid once
    python tests/notebooks/claims.py 03 --mutant "fix is the bug"   the same with one of mutants/m03.py
    python tests/notebooks/claims.py 03 --device cuda               on a GPU: every claim, also past a false one

No verdict stops the run here: a false one is noted and the lesson goes on, so that one run answers for all of them.
`scripts/claims.py` starts one process per run and prints the tables.

A margin comes out of the verdict itself: its number and its limit.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import gc
import io
import json
import linecache
import math
import os
import runpy
import sys
import time
import traceback
import types
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent.parent / "notebooks"


@dataclass
class Compared:
    """One comparison of a verdict: its text, both values, and how far it is from tipping over."""

    text: str
    left: float
    right: float
    holds: bool

    @property
    def margin(self) -> float:
        """How many times smaller the smaller side is: 1.0 is on the edge. inf where a side is zero or signs differ."""
        small, large = sorted((abs(self.left), abs(self.right)))
        if self.left * self.right <= 0 or not math.isfinite(large):
            return math.inf if self.left != self.right else 1.0
        return large / small


@dataclass
class Claim:
    """What one verdict said in one run."""

    claim: str
    passed: bool
    seen: str
    compared: list[Compared] = field(default_factory=list)


@dataclass
class Made:
    """One run of a lesson: its claims in order, the cells that raised, and the seconds it took."""

    lesson: str
    claims: list[Claim] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0


def path_of(number: str) -> Path:
    """The notebook of lesson "01"; of its page in `more`, "01-more"."""
    return next(FOLDER.glob(f"more/{number[:2]}_*.ipynb" if number.endswith("-more") else f"{number}_*.ipynb"))


def code_of(number: str) -> list[tuple[int, list[str], str]]:
    """(cell number, tags, source) of each code cell."""
    cells = json.loads(path_of(number).read_text())["cells"]
    return [
        (at, cell["metadata"].get("tags", []), "".join(cell["source"]))
        for at, cell in enumerate(cells)
        if cell["cell_type"] == "code"
    ]


def mutants_of(number: str) -> dict[str, list[tuple[str, str]]]:
    """Name -> replacements of source text, from mutants/mNN.py; empty when the lesson has none."""
    path = HERE / "mutants" / f"m{number}.py"
    return runpy.run_path(str(path))["MUTANTS"] if path.is_file() else {}


def mutated(cells: list[tuple[int, list[str], str]], edits: list[tuple[str, str]]) -> list[tuple[int, list[str], str]]:
    """The cells with each (old, new) applied. ValueError unless `old` stands in exactly one place of the lesson."""
    for old, new in edits:
        places = sum(source.count(old) for _, _, source in cells)
        if places != 1:
            raise ValueError(f"a mutant's text must stand once in the lesson, found {places} times: {old!r}")
        cells = [(at, tags, source.replace(old, new)) for at, tags, source in cells]
    return cells


OPS = {"<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b}


def ends(measured: Any, relation: str, limit: Any, text: str) -> list[Compared]:
    """The comparisons that a verdict is made of: one, or one for each end of an interval; none for an equality."""
    if relation == "in":
        return ends(measured, ">=", limit[0], text) + ends(measured, "<=", limit[1], text)
    values = measured if isinstance(measured, tuple) else (measured,)
    return [Compared(text, float(v), float(limit), OPS[relation](v, limit)) for v in values if relation in OPS]


class Runner:
    """Runs the cells and keeps what the verdicts said."""

    def __init__(self, lesson: str):
        self.made = Made(lesson)

    def verdict(self, claim: str, measured: Any, relation: str, limit: Any, unit: str = "") -> None:
        from labkit import verdicts

        left, right = verdicts.plain("measured", measured), verdicts.plain("limit", limit)
        passed, text = verdicts.holds(left, relation, right), verdicts.compared(left, relation, right, unit)
        self.made.claims.append(Claim(claim, passed, text, ends(left, relation, right, text)))
        print(f"{'PASS' if passed else 'FAIL'}  {claim} | {text}")

    def run(self, cells: list[tuple[int, list[str], str]], parameters: dict[str, Any]) -> Made:
        import labkit
        import labkit.verdicts

        labkit.verdict = labkit.verdicts.verdict = self.verdict
        # as in a kernel, what the cells define lives in __main__, where cloudpickle takes functions by value
        main = types.ModuleType("__main__")
        main.__dict__.update(display=lambda *_, **__: None)
        sys.modules["__main__"] = main
        began = time.perf_counter()
        for at, tags, source in cells:
            self.cell(f"<lesson {self.made.lesson}, cell {at}>", source, main.__dict__)
            if "parameters" in tags:
                main.__dict__.update({k: v for k, v in parameters.items() if k in main.__dict__})
        self.made.seconds = time.perf_counter() - began
        return self.made

    def cell(self, name: str, source: str, space: dict[str, Any]) -> None:
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        try:
            code = compile(source, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            waiting = eval(code, space)
            if asyncio.iscoroutine(waiting):
                asyncio.run(waiting)
        except Exception as error:
            where = [f"{f.name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__) if f.filename == name]
            self.made.errors.append(f"{name} {where[-1:]}: {type(error).__name__}: {error}"[:400])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lesson", metavar="NN")
    parser.add_argument("--mutant", default="")
    parser.add_argument("--seed", type=int, nargs="+", default=[0], metavar="N")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", metavar="auto|cpu|cuda")
    parser.add_argument("--verbose", action="store_true", help="print what the lesson prints")
    args = parser.parse_args()
    # before torch is imported
    os.environ.update(OMP_NUM_THREADS=str(args.threads), HF_HUB_OFFLINE="1")
    os.chdir(FOLDER)
    cells = mutated(code_of(args.lesson), mutants_of(args.lesson)[args.mutant] if args.mutant else [])
    for seed in args.seed:
        with contextlib.redirect_stdout(sys.stdout if args.verbose else io.StringIO()):
            made = Runner(args.lesson).run(cells, {"SEED": seed, "DEVICE": args.device})
        print(json.dumps(asdict(made)), flush=True)
        gc.collect()  # what the cells defined is gone with their `__main__`
    import labkit.sandbox

    labkit.sandbox.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
