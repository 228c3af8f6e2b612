"""Show in a notebook what a lesson did on a real GPU: `labkit.recording("01")`.

The exact texts stand in code blocks, numbers in tables, and the label says where and when they were made. Nothing is
shown that no GPU produced: without a recording one line says so. This file records nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit import recordings
from labkit.common import shown
from labkit.events import Run, Step
from labkit.recordings import thinned, without_middle

from . import notebook
from .tables import cell, markdown

TEXT_SHOWN = 3_000  # characters of one text in the notebook; the recording has more
ROWS_SHOWN = 12
COLUMNS = (
    "step",
    "round",
    "grad_norm",
    "kl",
    "reward",
    "nonfinite_params",
    "memory_allocated",
    "memory_reserved",
)


def recording(lesson: str | int, name: str | None = None) -> None:
    """Display the GPU recording of a lesson, or the one piece of its evidence called `name`.

    When there is none yet, one line says how to make it. ValueError for a recording that cannot be read, or a name
    that an up-to-date recording does not have.
    """
    lesson = recordings.number(lesson)
    found = recordings.load(lesson)
    text = f"GPU recording of lesson {lesson}"
    if found is None:
        _show(f"No GPU recording of lesson {lesson} yet. {_how(lesson)}", text)
        return
    if name is not None and name not in found.evidence:
        if not found.outdated:
            raise ValueError(f"{text} has no {name!r}; it has {', '.join(found.evidence) or 'no evidence'}")
        _show(
            f"The GPU recording of lesson {lesson} is older than this cell and has no `{name}`. {_how(lesson)}",
            text,
        )
        return
    names = list(found.evidence) if name is None else [name]
    parts = [label(found), *(evidence(n, found.evidence[n], found.notes.get(n, [])) for n in names)]
    if name is None:
        parts.append(_verdicts(found))
    _show("\n\n".join(parts), text)


def label(found: recordings.Recording) -> str:
    """Where and when a recording was made, and whether the lesson has changed since. Markdown."""
    facts = found.environment
    versions = [f"{n} {facts[n]}" for n in ("driver", "torch", "transformers") if facts.get(n)]
    where = [" + ".join(facts["gpu"]) or "no GPU", *versions, f"Python {facts['python']}", found.date[:10]]
    kind = "a GPU" if found.device == "cuda" else f"a {found.device.upper()} (a test, not a GPU)"
    lines = [f"**Recorded on {kind}:** {', '.join(where)}."]
    if found.outdated:
        lines.append(f"**Outdated:** the lesson's code has changed since. {_how(found.lesson)}")
    return "\n\n".join(lines)


def evidence(name: str, thing: Any, notes: Sequence[str] = ()) -> str:
    """One piece of evidence as Markdown."""
    if isinstance(thing, Run):
        parts = _run(name, thing)
    elif isinstance(thing, str):
        parts = [f"**{name}**", block(thing)]
    elif isinstance(thing, Path):
        parts = [
            f"**{name}**: every event of PyTorch's allocator, in `{thing.name}`; `labkit.memory.allocator.replay` reads it"  # noqa: E501
        ]
    else:
        parts = [f"**{name}**", _data(thing)]
    return "\n\n".join([*parts, *(f"*Left out of the recording: {note}.*" for note in notes)])


def block(text: str) -> str:
    """A text exactly as it is, in a code block whose fence it cannot close; the middle of a long one is left out."""
    text = without_middle(text.rstrip("\n"), TEXT_SHOWN)
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"


def _run(name: str, run: Run) -> list[str]:
    outcome = run.outcome
    code = f", error code {outcome.error_code}" if outcome.error_code is not None else ""
    raised = f" ({outcome.exception}{code})" if outcome.exception else ""
    rounds = "1 round" if run.rounds == 1 else f"{run.rounds} rounds"
    count = f"{len(run.steps)} steps in {rounds}, " if run.steps else ""
    parts = [f"**{name}**: {count}ended with `{outcome.signature}`{raised}"]
    if run.steps:
        parts.append(_steps(run.steps))
    if others := [e for e in run.events if not isinstance(e, Step)]:
        parts.append(_data(others))
    if outcome.stderr.strip():
        parts += ["What the process wrote to stderr:", block(outcome.stderr)]
    if outcome.message.strip():
        parts += ["What Python raised:", block(f"{outcome.exception}: {outcome.message}")]
    if outcome.traceback.strip():
        parts.append(f"<details><summary>Traceback</summary>\n\n{block(outcome.traceback)}\n\n</details>")
    return parts


def _steps(steps: list[Step]) -> str:
    logs = [step.log() for step in steps]
    names = [name for name in COLUMNS if any(name in row for row in logs)]
    return _table(thinned([{name: step[name] for name in names} for step in steps], ROWS_SHOWN))


def _data(data: Any) -> str:
    if isinstance(data, Mapping) and data and all(isinstance(v, (Mapping, list)) for v in data.values()):
        return "\n\n".join(f"`{k}`\n\n{_data(v)}" for k, v in data.items())
    if isinstance(data, Mapping):
        return _table([{"": k, "value": v} for k, v in data.items()])
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        names = list(dict.fromkeys(n for row in data for n in row))
        return _table([{n: row.get(n, "") for n in names} for row in thinned(data, 4 * ROWS_SHOWN)])
    if isinstance(data, list):
        return f"{len(data)} values: " + ", ".join(shown(v) for v in thinned(data, 4 * ROWS_SHOWN))
    return shown(data)


def _table(rows: list[dict[str, Any]]) -> str:
    return markdown(rows, _cell) if rows else "(empty)"


def _cell(name: str, value: Any) -> str:
    if name.startswith("memory_") and isinstance(value, (int, float)) and math.isfinite(value):
        return f"{value / 2**20:.1f} MiB"
    return without_middle(cell(value), 400).replace("\n", " ")


def _verdicts(found: recordings.Recording) -> str:
    passed = sum(v["result"] == "pass" for v in found.verdicts)
    rows = [{"": v["result"], "claim": v["claim"], "seen": v["seen"]} for v in found.verdicts]
    head = f"{passed} of {len(rows)} verdicts hold there"
    return f"<details><summary>{head}</summary>\n\n{_table(rows)}\n\n</details>" if rows else ""


def _how(lesson: str) -> str:
    return f"On a machine with a GPU: `labkit course {lesson} --device cuda --record`"


def _show(markdown: str, text: str) -> None:
    notebook.show_markdown(markdown, text if notebook.kernel() is not None else markdown)
