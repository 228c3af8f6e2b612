"""The learner's own copy of the lessons: made, brought up to date, a page of it begun anew.

The copy stands beside the lessons, so that the pages' links to `../docs` work in it too. Nothing that the learner has
written is written over. This file opens no page and runs none.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from labkit import lessons
from labkit.common import write_whole
from labkit.lessons import Lesson


@dataclass
class Changes:
    """What `bring_up_to_date` did. Files are named as in the copy: "02_kl_stays_at_zero.ipynb", "props/arms.py".

    copy        the folder
    is_new      it was made now
    refreshed   not changed by the learner, and replaced by a newer version
    kept        changed by the learner, though the lessons have a newer version
    """

    copy: Path
    is_new: bool = False
    refreshed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        name = self.copy.name
        lines = []
        if self.is_new:
            lines.append(f"{name}/ is your copy of the lessons: write in it; git ignores it")
        if self.refreshed:
            lines.append(f"{name}: brought up to date, you had not changed them: {_listed(self.refreshed)}")
        for file in self.kept:
            way_out = f"labkit reset {_number(file)} gives you the new one, and keeps yours"
            if not file.endswith(".ipynb"):
                way_out = "delete yours to get the new one; pages may need it"
            lines.append(f"{name}/{file}: yours is kept; there is a newer version: {way_out}")
        return "\n".join(lines)


def bring_up_to_date(folder: Path) -> Changes:
    """Make the copy of the lessons in `folder`, or renew in it what the learner has not changed.

    Raises: OSError where the copy cannot be written.
    """
    copy = lessons.copy_of(folder)
    changes = Changes(copy)
    if copy == folder:
        return changes
    changes.is_new = not copy.exists()
    record = _read_record(copy)
    before = dict(record)
    newest = {name: version(folder / name) for name in _files(folder)}
    for name in newest:
        mine = copy / name
        if mine.exists():
            have = version(mine)
            if have not in (newest[name], record.get(name)):
                # the learner's: the record still says from which version he began
                if record.get(name) != newest[name]:
                    changes.kept.append(name)
                continue
            if have != newest[name]:
                changes.refreshed.append(name)
                write_whole(mine, (folder / name).read_bytes())
        else:
            write_whole(mine, (folder / name).read_bytes())
        record[name] = newest[name]
    for name in record.keys() - newest.keys():  # the lessons have it no more
        mine = copy / name
        if mine.is_file() and version(mine) == record[name]:
            mine.unlink()
        del record[name]
    if record != before:
        _write_record(copy, record)
    return changes


def reset(lesson: Lesson, folder: Path) -> str:
    """Put the lesson's page into the copy anew, and keep the learner's beside it. Returns what was done, in words.

    lesson   of the lessons in `folder`, not of the copy
    Raises: ValueError where there is no copy yet, and where `folder` is one.
    """
    copy = lessons.copy_of(folder)
    if copy == folder:
        raise ValueError(f"{folder} is itself a copy; name the lessons that it was made of with --notebooks")
    if not lessons.is_copy(copy):
        raise ValueError(f"no copy of the lessons in {copy}; labkit lab makes it")
    name = lesson.path.relative_to(folder)
    page = copy / name
    shown = f"{copy.name}/{name.as_posix()}"
    fresh = lesson.path.read_bytes()
    done = f"{shown} is fresh"
    if page.exists():
        if page.read_bytes() == fresh:
            return f"{shown} is fresh already: nothing done"
        # with a full stop before the date, so that it stands before the page in a list, and is not taken for it
        old = page.with_name(f"{page.stem}.{time.strftime('%Y-%m-%d_%H%M%S')}.ipynb")
        page.rename(old)
        done += f"; yours is kept as {old.name}. If the page is open: File, Reload Notebook from Disk"
    write_whole(page, fresh)
    record = _read_record(copy)
    record[name.as_posix()] = version(page)
    _write_record(copy, record)
    return done


def version(path: Path) -> str:
    """A digest of what a file says. Of a notebook only the cells' sources count: to run a page is not to change it."""
    content = path.read_bytes()
    if path.suffix == ".ipynb":
        try:
            cells = json.loads(content)["cells"]
            said = [[cell["cell_type"], "".join(cell["source"])] for cell in cells]
            content = json.dumps(said).encode()
        except (ValueError, LookupError, TypeError):
            pass  # no notebook any more: then its bytes count
    return hashlib.sha256(content).hexdigest()


def _files(folder: Path) -> list[str]:
    """What the copy has of the lessons: the pages, and what they import."""
    paths = lessons.pages(folder)
    for path in sorted(folder.glob("props/**/*")):
        if path.is_file() and not {"__pycache__", ".ipynb_checkpoints"} & {*path.parts}:
            paths.append(path)
    return [path.relative_to(folder).as_posix() for path in paths]


def _read_record(copy: Path) -> dict[str, str]:
    """Of each file the version that was copied. Empty where the record is lost: then nothing is replaced."""
    try:
        return dict(json.loads((copy / lessons.RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _write_record(copy: Path, record: dict[str, str]) -> None:
    write_whole(copy / lessons.RECORD, json.dumps(record, indent=1, sort_keys=True) + "\n")


def _number(file: str) -> str:
    return lessons.number_of(Path(file))


def _listed(files: list[str]) -> str:
    """ "00, 02 and 3 files of props": pages by their numbers."""
    pages = [_number(file) for file in files if file.endswith(".ipynb")]
    others = len(files) - len(pages)
    words = ", ".join(pages)
    if others:
        files_of_props = "1 file of props" if others == 1 else f"{others} files of props"
        words = f"{words} and {files_of_props}" if words else files_of_props
    return words
