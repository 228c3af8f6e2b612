"""The runs that lesson 18 has played once: every suspect on some seeds, under three settings.

    python scripts/mystery_runs.py           play what is missing in notebooks/props/mystery_runs.jsonl, and add it
    python scripts/mystery_runs.py --check   play one seed of each suspect again, and compare

A run takes a second and a half of one core. The suspects are those of notebooks/props, the instruments and the page's
own settings those of the lesson's cells. To begin anew, delete the file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "notebooks"), str(ROOT / "tests" / "notebooks")]

from labkit.common import write_whole  # noqa: E402

Row = dict[str, Any]
DIGITS = 4  # that are kept of a number


def settings() -> dict[str, tuple[dict[str, Any], int]]:
    """Name of the settings -> the settings, and on how many seeds they are played."""
    from cut import Page
    from props.lesson_18_runs import PAGE, SETTINGS

    own = Page("18")["SETTINGS"]
    one_update, other_rate = SETTINGS[1:]
    return {PAGE: (own, 20), one_update: (own | {"mu": 1, "beta": 0.0}, 3), other_rate: (own | {"lr": 5e-5}, 3)}


def few_draws(surprise: Any) -> Any:
    """The surprise of the first of eight groups of each prompt: 8 draws in place of 64."""

    def measure(look: Any) -> float:
        return surprise(look.logp[look.first_group], look.logits[look.first_group])

    return measure


def wanted() -> Iterator[tuple[str, int, str]]:
    """(settings, seed, suspect) of every run."""
    from props.suspects import SUSPECTS

    for name, (_, seeds) in settings().items():
        for seed in range(seeds):
            for suspect in SUSPECTS:
                yield name, seed, suspect


def played(name: str, seed: int, suspect: str) -> Row:
    """One run, as a row of the file."""
    from cut import Page
    from props import mystery
    from props.asks import Case
    from props.suspects import SUSPECTS

    from labkit import sandbox

    page = Page("18")
    instruments = page["INSTRUMENTS"] | {"surprise, 8 draws": few_draws(page["surprise"])}
    own, _ = settings()[name]
    case = Case.of(sandbox.run(mystery.play, SUSPECTS[suspect], instruments, **own, seed=seed))
    log = {column: [rounded(value) for value in values] for column, values in case.log.items()}
    said = {}
    for what, answers in case.said.items():
        said[what] = {str(at): rounded(value) for at, value in answers.items()}
    return {"setting": name, "seed": seed, "name": suspect, "log": log, "said": said}


def rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def rows_of(path: Path) -> list[Row]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def differences(row: Row, again: Row) -> list[str]:
    """The numbers of a run that came out otherwise by more than 2 % of the larger and by more than 0.02."""
    found = []
    for part in ("log", "said"):
        for name, values in row[part].items():
            pairs = zip(numbers(values), numbers(again[part][name]), strict=True)
            if not all(close(one, other) for one, other in pairs):
                found.append(f"{name}: {values}, and now {again[part][name]}")
    return found


def numbers(values: Any) -> list[float]:
    return list(values.values() if isinstance(values, dict) else values)


def close(one: float, other: float) -> bool:
    both_none = math.isnan(one) and math.isnan(other)
    return both_none or math.isclose(one, other, rel_tol=0.02, abs_tol=0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="play seed 0 again, and compare")
    check = parser.parse_args().check
    os.environ["OMP_NUM_THREADS"] = "1"
    from props.lesson_18_runs import KEPT, PAGE

    kept = {(row["setting"], row["seed"], row["name"]): row for row in rows_of(KEPT)}
    failed = 0
    for key in wanted():
        if check and key[:2] == (PAGE, 0):
            found = differences(kept[key], played(*key))
            failed += bool(found)
            print(key[2], *(found or ["as it was"]), sep="\n  ", flush=True)
        elif not check and key not in kept:
            kept[key] = played(*key)
            text = "".join(json.dumps(kept[one]) + "\n" for one in wanted() if one in kept)
            write_whole(KEPT, text)
            print(*key, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
