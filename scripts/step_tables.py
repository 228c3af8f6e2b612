"""The tables of docs/grpo-step.md: the forms that `checks.grpo_step` knows, and what it answers to TRL's losses.

python scripts/step_tables.py        write them into the page, between its marks
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "checks")]

import trl_losses  # noqa: E402

from labkit.checks import grpo_step  # noqa: E402
from labkit.checks.grpo_step import forms  # noqa: E402
from labkit.common import write_whole  # noqa: E402

PAGE = ROOT / "docs" / "grpo-step.md"
PARTS = {
    "advantage": forms.ADVANTAGES,
    "ratio": forms.RATIOS,
    "mask": forms.MASKS,
    "divisor": forms.DIVISORS,
    "KL": forms.KLS,
}
WORDS = {True: "passes", False: "fails", None: "open"}


def rows(cells: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


def published() -> str:
    table = [("part", "form", "source"), ("---", "---", "---")]
    for part, known in PARTS.items():
        table += [(part, form.name, form.source) for form in known if not form.wrong]
    return rows(table)


def mistakes() -> str:
    table = [("part", "named", "what a report says"), ("---", "---", "---")]
    for part, known in PARTS.items():
        table += [(part, form.name, form.says) for form in known if form.wrong]
    return rows(table)


def of_trl() -> str:
    def code(options: dict) -> str:
        text = ", ".join(f"{name}={value!r}" for name, value in options.items())
        return f"`{text}`" if text else ""

    table = [("options", "said to the check", "it", "variant", "parts"), ("---",) * 5]
    for options, said, *_ in trl_losses.TABLE:
        report = grpo_step(trl_losses.grpo(**options), **said)
        shown = ", ".join(f"{report.parts[name]}" for name in ("ratio", "mask", "divisor", "kl"))
        table.append((code(options), code(said), WORDS[report.passed], report.variant, shown))
    return rows(table)


def main() -> None:
    warnings.simplefilter("ignore")
    text = PAGE.read_text()
    for name, make in (("published", published), ("mistakes", mistakes), ("trl", of_trl)):
        pattern = rf"(<!-- {name} -->\n).*?(\n<!-- end -->)"
        table = make()
        text = re.sub(pattern, lambda found, table=table: found[1] + table + found[2], text, flags=re.DOTALL)
    write_whole(PAGE, text)


if __name__ == "__main__":
    main()
