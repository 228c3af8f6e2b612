"""What `labkit course` shows in a terminal: a line for each lesson that has ended, above a bar, and a table at the end.

Where the output is a file, no bar.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from labkit.lessons import Lesson


@contextlib.contextmanager
def progress(count: int) -> Iterator[Callable[[Lesson], None]]:
    """While this lasts, what it gives is called with each of `count` lessons when that has ended. On stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = TextColumn("lessons"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=count)

        def ended(lesson: Lesson) -> None:
            bar.advance(task)
            line = f"{_title(lesson)}  {_passed(lesson)}  {lesson.seconds:.1f} s  {_note(lesson)}"
            console.print(line, soft_wrap=True)

        yield ended


def report(done: Sequence[Lesson], recordings: Sequence[Path]) -> None:
    """The table, the verdicts of lessons that failed or of the only one, and the recordings. On stdout."""
    from rich.console import Console
    from rich.table import Table

    table: Any = Table(title="The course", title_justify="left")
    for name, justify in (("lesson", "left"), ("verdicts", "right"), ("seconds", "right"), ("", "left")):
        table.add_column(name, justify=justify)
    for lesson in done:
        table.add_row(_title(lesson), _passed(lesson), f"{lesson.seconds:.1f}", _note(lesson))
    Console().print(table)
    for lesson in done:
        if len(done) == 1 or not lesson.ok:
            for v in lesson.verdicts:
                print(f"  {lesson.number} {v['result'].upper()}  {v['claim']} | {v['seen']}")
    for path in recordings:
        print(f"recorded: {path} ({path.stat().st_size / 1000:.0f} kB)")


def _title(lesson: Lesson) -> str:
    from rich.markup import escape

    return escape(f"{lesson.number} {lesson.title}")


def _passed(lesson: Lesson) -> str:
    passed = sum(v["result"] == "pass" for v in lesson.verdicts)
    return f"{passed}/{max(len(lesson.expected), len(lesson.verdicts))}"


def _note(lesson: Lesson) -> str:
    from rich.markup import escape

    if lesson.ok:
        return "[green]ok[/]"
    why = lesson.error[:100]
    if not why and lesson.missing:
        why = f"{len(lesson.missing)} claims not made, first: {lesson.missing[0]}"
    return f"[red]failed[/] {escape(why)}"
