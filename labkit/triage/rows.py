"""Rows of measurements in the lines of a log, whatever stands between the names and the numbers.

Read are Python dicts and JSON (glued to progress bars, broken over lines, a brace missing, numbers quoted), `step:1 -
key:value` lines, `key: value` and `key=value` text, CSV, tables with a header, tables turned over (a line for each
measurement), lists, and ranges: `reward 0.31 -> 0.02` is a column of two values. This file judges nothing.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from .names import better, canonical, held_out, is_metric

EDGE = 50  # rows at the start and at the end of a log that are all kept
MOST_ROWS = 20_000  # of more, every second one between the edges is dropped, again and again
MOST_ODD = 1000  # rows with something odd that are kept when others are dropped
ARMS = {"run", "arm", "config", "variant", "method"}  # columns of a table whose rows are runs, not moments of one
MISSING = {"", "-", "--", "---", "n/a", "na", "none", "?", "...", "\u2014", "\u2013", "\u2026"}  # cells without a value
_FRACTION = re.compile(r"\s*(\d+) ?/ ?(\d+)\s*")
NOT_THE_POLICY = ("step", "epoch", "learning_rate")

FORMS = tomllib.loads((files(__package__) / "forms.toml").read_text(encoding="utf-8"))
_LINE = {
    name: re.compile(form.replace("NAMED", FORMS["named"]).replace("NUMBER", FORMS["number"]))
    for name, form in FORMS["line"].items()
}


@dataclass(frozen=True)
class Row:
    """One row of measurements, as far as it could be read.

    line    where it ends in its source, from 1
    values  canonical name, or the name as written where there is none, to the number
    summed  it is one end of a range that somebody wrote (`0.31 -> 0.02`), and stands for many rows
    """

    line: int
    values: dict[str, float]
    summed: bool = False

    @property
    def at(self) -> str:
        """Where it stands, for people: its step where it has one."""
        step = self.values.get("step", math.nan)
        return f"step {step:g}" if step == step else f"line {self.line}"


def without_prefix(text: str) -> str:
    """A line without what a launcher, Ray or wandb puts before it: `[rank1]:`, `(raylet)`, a date."""
    return _LINE["prefix"].sub("", text)


def rank_of(text: str) -> str | None:
    """The number of the rank that wrote a line, where it says so."""
    found = _LINE["rank"].search(text) if "ank" in text else None
    return found[1] if found else None


def named(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a dict row under canonical names; a name that has none stays as it was written."""
    row: dict[str, float] = {}
    for key, value in values.items():
        name = canonical(key) or key
        if name == key != "eval_loss":
            name = key.removeprefix("eval_")
        number = _as_number(value)
        if name == "step" and number is None and isinstance(value, str):
            number = _number(value.strip("'\"").split("/")[0])
        if number is not None:
            row.setdefault(name, number)
    if "kl" in row and "dpo_margin" in row:  # KTO's is summed over the answer, and healthy at tens of nats
        row["kl_sum"] = row.pop("kl")
    return row


class Rows:
    """The rows of one source, read line by line. `settings` gets dicts that measure nothing."""

    def __init__(self, settings: dict[str, Any]):
        self.rows: list[Row] = []
        self.settings = settings
        self.dropped = 1  # one row in so many is kept between the edges
        self.line = 0
        self.open: dict[str, Any] | None = None  # the dict row that is being read
        self.carry = ""  # its broken end
        self.plain: dict[str, float] = {}  # the row of key: value text that is being read
        self.plain_line = 0
        self.begins_with = ""  # the name with which such rows begin
        self.waits_for = ""  # behind a gap: that name, so that no row is made of two
        self.header: list[str] | None = None  # of a table or of CSV
        self.heads: list[str] = []  # the cells of the last line of a table that named no measurement
        self.columns: dict[str, list[float | None]] = {}  # of a table turned over, of lists, of ranges
        self.tables = 0  # headers and series that were met: two of them may speak of the same steps
        self.runs: list[Row] = []  # of tables whose rows are runs: what they share says something
        self.of_runs = False  # whether the table that is being read is such a one
        self.summed = False  # whether these columns are ranges

    def read(self, text: str, line: int) -> None:
        """Read the next line."""
        self.line = line
        if "%" in text:
            text = _LINE["percent"].sub(lambda found: f"{float(found[1]) / 100:g}", text)
        if "-" in text or "~" in text:
            text = _LINE["dashed"].sub(lambda found: f" {(float(found[1]) + float(found[2])) / 2:g}", text)
        if text.startswith("#") and self.heading(text):
            return
        if self.turned(text) or (":" in text and "{" not in text and self.series(text)):
            return
        if self.columns and text.strip(" |-:+=\t"):
            self.close_columns()
        if "rewards" in text and "[" in text and "zero_std" not in text:
            text = _LINE["group"].sub(_with_ties, text)
        if "(" in text or "[" in text or "mean=" in text:
            text = _LINE["scalar"].sub(r"\1\2", text)
        # the first reader that finds something of a row has the line
        found = "\t" in text and self.header is not None and self.table(text)
        found = found or self.dicts(text) or self.table(text) or self.pairs(text)
        if found and len(self.rows) > MOST_ROWS:
            self.rows[EDGE:-EDGE] = _every_second(self.rows[EDGE:-EDGE])
            self.dropped *= 2

    def close(self) -> None:
        """The source ends here, or lines are left out."""
        self.waits_for = next(iter(self.plain), self.begins_with) if len(self.plain) != 1 else self.begins_with
        self.close_dict()
        self.close_plain()
        self.close_columns()  # the header of a table stays: it stands behind the gap, too

    def finish(self) -> None:
        """All has been read."""
        self.close()
        if self.tables > 1:
            self.rows = _merged(self.rows)

    def heading(self, text: str) -> bool:
        """Read a line that begins with `#`: what it says is how the run was set, and no measurement."""
        pairs = _LINE["setting"].findall(text)
        for name, number in pairs:
            self.settings.setdefault(canonical(name) if canonical(name) == "learning_rate" else name, number)
        return not _LINE["range"].search(text)

    # ---- dicts

    def dicts(self, text: str) -> bool:
        """Read the `'key': value` pairs of a line. True when it had some, or ended a dict."""
        if self.open is None and not ("': " in text or "':" in text or '":' in text or '" :' in text):
            return False
        if self.carry:
            text = self.carry + (text if text[:1].isspace() else text.lstrip("\ufeff"))
            self.carry = ""
        end, seen = 0, False
        for mark in _LINE["mark"].finditer(text):
            seen = True
            if mark["brace"]:
                self.close_dict()
                end = mark.end()
                continue
            value = mark["value"]
            if mark.end() == len(text) and re.match(r"[-+\d.]", value) and self.open is not None:
                break  # a number at the very end of a line may go on in the next
            key = mark["key"].strip()
            if self.open is not None and key in self.open:
                self.close_dict()
            if self.open is None:
                self.open = {}
            self.open[key] = value
            end = mark.end()
        if self.open is not None:
            rest = text[end:]
            if "'" in rest or '"' in rest or re.search(r"[-+\d.]$", rest):
                self.carry = rest[-300:]
            elif not seen and text.strip(" ,]"):
                self.close_dict()  # a line of something else: the brace was missing
        return seen

    def close_dict(self) -> None:
        values, self.open, self.carry = self.open, None, ""
        if not values:
            return
        row = named(values)
        if any(is_metric(name) for name in row):
            self.close_plain()
            self.rows.append(Row(self.line, row))
        elif len(self.settings) < 500:
            for key, value in values.items():
                if len(value) < 80 and (canonical(key) or re.fullmatch(r"\w+", key)):
                    self.settings[key] = value.strip("'\"")

    # ---- tables

    def table(self, text: str) -> bool:
        """Read a line of CSV or of a table, once a header has named its columns."""
        if not ("|" in text or "\t" in text or "," in text or "  " in text.strip()):
            if text.strip():
                self.header = None
            return False
        cells = _split(text)
        index = 0 if "|" in text else 1  # pandas writes an index before the cells
        if not self.header or not 0 <= len(cells) - len(self.header) <= index:
            return self.is_header(text, cells)
        points = []
        for name, cell in zip(self.header, cells[-len(self.header) :], strict=True):
            points.append([_step(cell)] if name == "step" and "->" not in cell else _range(cell))
        if all(values == [None] for values in points):
            return self.is_header(text, cells)
        count = max(map(len, points))
        self.close_plain()
        for at in range(count):  # a row of ranges is several rows
            row: dict[str, float] = {}
            for name, values in zip(self.header, points, strict=True):
                value = values[min(at, len(values) - 1)]
                if value is not None:
                    row.setdefault(name, value)
            rows = self.runs if self.of_runs else self.rows
            rows.append(Row(self.line, row, summed=count > 1))
        return True

    def is_header(self, text: str, cells: list[str]) -> bool:
        """Whether cells are the names of columns: enough are known, and no number stands among them."""
        if _LINE["value"].search(text) or any(_number(cell) is not None for cell in cells):
            return False
        if any(_LINE["range"].match(cell) for cell in cells):
            return False
        names = [canonical(cell) for cell in cells]
        known = [name for name in names if name]
        moments = bool(_LINE["course"].match(cells[0]))
        for cell, name in zip(cells, names, strict=True):
            if not name and (held_out(cell) or (moments and "|" in text and better(cell))):
                known.append(cell)
        if not (moments or "step" in known or any(map(is_metric, known))):
            return False
        enough = 1 if "|" in text and len(cells) > 2 else 2
        if len(known) + (moments and "step" not in known) < enough:
            if moments and "|" in text:
                self.header = None  # of another table, without a column that says anything
            return False
        self.header = [name or cell for name, cell in zip(names, cells, strict=True)]
        if moments and "step" not in names and not canonical(cells[0]):
            self.header[0] = "step"
        self.of_runs = not ARMS.isdisjoint(map(str.lower, cells))
        self.tables += 1
        return True

    # ---- tables turned over, lists, ranges

    def turned(self, text: str) -> bool:
        """Read a line that holds a whole column, or a part of several columns. Whether it did."""
        if " from " in text:
            text = _LINE["from"].sub(_with_arrow, text)
        if "→" in text or "->" in text or "=>" in text:
            return self.ranges(text)
        several = ", " in text or "; " in text or "/ " in text
        if several and self.header is None and "{" not in text and (bare := _LINE["bare_list"].match(text)):
            return self.lists("", [(bare["key"], bare["numbers"])])
        if "[" in text and (lists := _LINE["list"].findall(text)):
            return self.lists(text, lists)
        if not ("|" in text or "\t" in text or "," in text or "  " in text.strip()) or self.open is not None:
            return False
        cells = _split(text)
        if len(cells) < 3 or not any(cell.strip("-:= ") for cell in cells):
            return False
        kept = [at for at in range(1, len(cells)) if not self.is_comment(at, len(cells))]
        heads = [self.heads[at] for at in kept] if len(self.heads) == len(cells) else []
        moments = bool(heads) and all(_LINE["moment"].match(head) for head in heads)
        values = [_cell(cells[at]) if "|" in text else _number(cells[at]) for at in kept]
        words = [cells[at] for at, value in zip(kept, values, strict=True) if value is None]
        absent = moments and all(word.lower() in MISSING for word in words)  # a value that was not measured there
        if (words and not absent) or len(values) - len(words) < 2:
            if not moments:
                self.heads = cells  # `metric | step 0 | step 100`, perhaps
            return False
        name = _metric(cells[0]) or (cells[0] if self.columns or (moments and better(cells[0])) else "")
        if not name or self.header is not None:
            if not moments:
                self.heads = cells if _number(cells[0]) is None else []  # `metric | 0 | 100`, perhaps
            return False
        other_runs = len(self.heads) == len(cells) and not moments
        if name not in self.columns and not moments and not self.columns and (len(values) < 4 or other_runs):
            return False  # two or three numbers without a head may be anything; under other heads they are runs
        if moments and not self.columns:
            steps = _moments(heads)
            self.add_column("step", steps)
            self.summed = not steps and len(values) < 4  # `early | late`: means over many rows
        self.add_column(name, values)
        return True

    def series(self, text: str) -> bool:
        """Read the values of one measurement at several steps: `val acc: step 0 0.69, step 15 0.71`."""
        found = _LINE["series"].match(text)
        if not found:
            return False
        name = found["name"].strip("# *-")
        name = _metric(name) or (name if better(name) else "")
        pairs = [(float(step), _number(value)) for step, value in _LINE["step_and_value"].findall(found["rest"])]
        steps = [step for step, _ in pairs]
        if not name or name in NOT_THE_POLICY or steps != sorted(set(steps)):
            return False
        for step, value in pairs:
            self.rows.append(Row(self.line, {"step": step, name: value or 0.0}))
        self.tables += 1
        return True

    def is_comment(self, at: int, count: int) -> bool:
        """Whether the head over a cell says that it compares others: a change, a verdict."""
        return len(self.heads) == count and _LINE["comment"].match(self.heads[at]) is not None

    def lists(self, text: str, lists: list[tuple[str, str]]) -> bool:
        """Read the lists of a line, where it has no numbers beside them: a dict row may hold one for each device."""
        if self.pairs_in(_LINE["list"].sub("", text), 1) or _LINE["mark"].search(_LINE["list"].sub("", text)):
            return False
        for key, numbers in lists:
            self.add_column(_metric(key), [_number(x) or 0.0 for x in re.split(r"[,/;\s]+", numbers.strip()) if x])
        return any(_metric(key) for key, _ in lists)

    def ranges(self, text: str) -> bool:
        """Read the ranges of a line: each of its names gets the values of its arrows."""
        if not _LINE["range"].search(text):
            return False
        cells = _split(text) if "|" in text else []
        if self.header and len(cells) in (len(self.header), len(self.header) + 1):
            return False  # a row of the table
        found = False
        points = max(len(_arrows(match[0])) for match in _LINE["range"].finditer(text))
        text = _LINE["going"].sub(": ", text)
        versions = []
        for at in range(points):
            versions.append(_LINE["range"].sub(functools.partial(_point, at=at), text))
        rows = [self.pairs_in(version.replace("|", " : ", 1) if cells else version, 1) for version in versions]
        names = dict.fromkeys(itertools.chain(*rows))
        varies = [name for name in names if len({row.get(name) for row in rows}) > 1]
        if not varies:
            return False  # what goes from one number to another has no name here
        for name in names:
            if name != "step" or name in varies:
                self.add_column(name, [row[name] for row in rows if name in row])
                found = self.summed = True
        return found

    def add_column(self, name: str, values: Sequence[float | None]) -> None:
        if not name or not values:
            return
        if name in self.columns:
            self.close_columns()
        self.columns[name] = list(values)

    def close_columns(self) -> None:
        """Columns that stood beside each other, as rows. Shorter ones keep their first and their last value."""
        columns, self.columns, self.heads = self.columns, {}, []
        if columns:
            self.close_plain()
        summed, self.summed = self.summed, False
        if not any(is_metric(name) or held_out(name) for name in columns):
            return
        count = max(map(len, columns.values()))
        for at in range(count):
            row = {}
            for name, values in columns.items():
                place = at * (len(values) - 1) / max(count - 1, 1)
                value = values[int(place)]
                if place == int(place) and value is not None:
                    row[name] = value
            self.rows.append(Row(self.line, row, summed))

    # ---- key: value

    def pairs(self, text: str) -> bool:
        """Read `key: value` and `key=value` text: two known names on a line, or one that is all the line says."""
        if cells := _cells(text):
            return self.extend_plain(cells)
        begins = _LINE["begins"].match(text)
        found = self.pairs_in(text, 1 if begins else 2, begins is not None)
        if found and "step" not in found and (steps := _LINE["step"].findall(text)):
            found["step"] = float(next((named for named, _ in steps if named), steps[-1][1]))
        return bool(found) and self.extend_plain(found)

    def pairs_in(self, text: str, needed: int, begins: bool = True) -> dict[str, float]:
        """The names and numbers of a line; {} where fewer than `needed` are known, and the line says more than one."""
        spaced = (begins or "," in text or "|" in text) and _LINE["bare"].search(text)
        if not spaced and not _LINE["value"].search(text):
            return {}
        found: dict[str, float] = {}
        pairs = _LINE["pair"].finditer(text)
        for pair in itertools.chain(pairs, _LINE["spaced"].finditer(text) if spaced else ()):
            name = _metric(pair["key"])
            if name:
                found.setdefault(name, float(_number(pair["value"]) or 0.0))
        known = [name for name in found if is_metric(name) or name in NOT_THE_POLICY]
        # what is not finite counts wherever it stands
        if len(known) >= needed or not all(math.isfinite(found[name]) for name in known):
            return found
        whole = _LINE["whole"].match(text)
        if not whole:
            return {}
        name = _metric(whole["key"])
        ours = is_metric(name) or (name == "learning_rate" and bool(self.plain))  # of the row that is being read
        return {name: _number(whole["value"]) or 0.0} if ours else {}

    def extend_plain(self, found: dict[str, float]) -> bool:
        """Put names and numbers into the row that is being read; a name that it has begins the next row."""
        if self.waits_for and self.waits_for not in found:
            return True
        self.waits_for = ""
        if not found.keys().isdisjoint(self.plain):
            self.close_plain()
        self.plain, self.plain_line = self.plain | found, self.line
        return True

    def close_plain(self) -> None:
        row, self.plain = self.plain, {}
        self.begins_with = next(iter(row), self.begins_with)
        if any(is_metric(name) for name in row):
            self.rows.append(Row(self.plain_line, row))


def _with_ties(found: re.Match[str]) -> str:
    """A list of what the answers to one prompt earned, with a word on whether all are equal before it."""
    numbers = [_number(cell) for cell in found["numbers"].split(",")]
    return f"'frac_reward_zero_std': {float(len(set(numbers)) == 1)}, {found[0]}"


def _every_second(rows: list[Row]) -> list[Row]:
    """One row in two, and the first that are odd."""
    odd = set(itertools.islice((at for at, row in enumerate(rows) if _odd(row.values)), MOST_ODD))
    return [row for at, row in enumerate(rows) if at % 2 == 0 or at in odd]


def _odd(row: dict[str, float]) -> bool:
    """Whether a row must not be dropped: something is not finite, or a gradient or a KL is enormous."""
    return not all(map(math.isfinite, row.values())) or max(row.get("grad_norm", 0), row.get("kl", 0)) > 1e3


def _cells(text: str) -> dict[str, float]:
    """What a line says that is one of a table, `| name | number |`, or has many names: `a / b / c: 1 / 2 / 3`."""
    cells: list[str] = []
    if text.lstrip().startswith(("|", "\u2502")):
        cells = [cell.strip() for cell in text.replace("\u2502", "|").strip().strip("|").split("|")]
    elif len(text) < 4000 and _LINE["words"].match(text):
        cells = [*itertools.chain(*_LINE["named"].findall(text))]
    pairs = [(_metric(name), _number(value)) for name, value in zip(cells[::2], cells[1::2], strict=False)]
    return {name: value for name, value in pairs if name and value is not None}


def _split(text: str) -> list[str]:
    """The cells of a line of a table; of `| | 1 | 2 |` the first is empty."""
    bare = text.strip().removeprefix("|").removesuffix("|")
    if "|" in text:
        bare = bare.replace("**", "").replace("`", "").replace("\u2212", "-").replace("\u2013", "-")
    if text.count("|") >= 3 and text.lstrip().startswith("|"):  # there a comma separates thousands
        return [cell.strip() for cell in bare.split("|")]
    return [cell.strip() for cell in _LINE["split"].split(bare.rstrip() if "|" in text else bare)]


def _metric(key: str) -> str:
    """The canonical name, or the name as written where that is a reward function's or a loss's; else ""."""
    name = key.strip()
    return canonical(key) or (name if is_metric(name.lower()) or held_out(name) else "")


def _as_number(value: Any) -> float | None:
    if isinstance(value, str):
        return _number(value)
    return float(value) if isinstance(value, int | float) else None


def _number(text: str) -> float | None:
    text = text.strip().strip("'\"").replace(",", "")
    try:
        return float(text) if len(text) < 40 else None
    except ValueError:
        return None


def _arrows(text: str) -> list[str]:
    """The numbers of a range."""
    return [part.strip() for part in re.split(r"→|-+>|=+>", text)]


def _with_arrow(found: re.Match[str]) -> str:
    """`from about 8.7k to 16.3k` as a range."""
    start, end = (_cell(number) for number in found.groups())
    return f" {start} -> {end}"


def _point(found: re.Match[str], at: int) -> str:
    """The number at one place of a range, or its last."""
    numbers = _arrows(found[0])
    return numbers[min(at, len(numbers) - 1)]


def _range(cell: str) -> list[float | None]:
    """The values of a cell: one number, or those of a range; [None] where it is neither."""
    number = _number(cell)
    if number is None and ("→" in cell or ">" in cell) and _LINE["range"].match(cell.strip()):
        return [_number(part) for part in _arrows(_LINE["range"].match(cell.strip())[0])]  # type: ignore[index]
    return [_cell(cell)]


def _cell(cell: str) -> float | None:
    """The number of a cell that people wrote: `~0.6`, `4.9%`, `8.7k`, `512 tokens`, `0.05-0.10` (its middle)."""
    number = _number(cell)
    fraction = _FRACTION.fullmatch(cell) if number is None else None
    if fraction and 0 < float(fraction[2]) >= float(fraction[1]):
        return float(fraction[1]) / float(fraction[2])
    found = _LINE["cell"].fullmatch(cell) if number is None and cell else None
    if not found:
        return number
    number = _number(found[1])
    if number is not None and found[2]:
        number = (number + (_number(found[2]) or 0.0)) / 2
    scale = {"k": 1e3, "K": 1e3, "M": 1e6, "%": 0.01}.get(found[3] or "", 1.0)
    return None if number is None else number * scale


def _step(cell: str) -> float | None:
    """The step that a cell names: `40`, `step 40`, `1-100` (its middle), `300+`, `4/27`, `90k`."""
    found = _LINE["step_cell"].fullmatch(cell)
    if not found:
        return None
    scale = {"k": 1e3, "m": 1e6}.get((found["scale"] or "").lower(), 1.0)
    first = _number(found["first"]) or 0.0
    last = first if found["last"] is None else _number(found["last"]) or 0.0
    return (first + last) / 2 * scale


def _merged(rows: list[Row]) -> list[Row]:
    """Rows of several tables that speak of the same steps, as one row for each; in the order of the steps.

    As they are where a step stands twice with the same measurement: then they are no parts of one course.
    """
    merged: dict[float, Row] = {}
    for row in rows:
        step = row.values.get("step")
        if step is None:
            return rows
        before = merged.get(step)
        if before is None:
            merged[step] = row
            continue
        if before.summed or row.summed or before.values.keys() & row.values.keys() != {"step"}:
            return rows
        merged[step] = Row(before.line, before.values | row.values)
    return [merged[step] for step in sorted(merged)]


def _moments(heads: list[str]) -> list[float]:
    """The steps that the heads of a table turned over name; [] where they name none."""
    numbers = [re.search(r"\d[\d,.]*", head) for head in heads]
    if not all(numbers):
        return []
    steps = [_number(found[0]) or 0.0 for found in numbers if found]
    return steps if steps == sorted(set(steps)) else []
