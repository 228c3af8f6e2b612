"""Page 13's pictures: two texts of one line, the chain of boxes, and the table of holders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from props.lesson_13_holders import REMEDIES

from labkit.display.panels import TONES
from labkit.display.sheet import INK, Picture, png, sheet

OLD, NEW = TONES["bug"][0], TONES["healthy"][0]
FAR, GREY = TONES["far"][0], TONES["grey"][0]
WIDTH, DPI = 8.6, 125
MONO = {"family": "DejaVu Sans Mono"}
CODES = {
    "disk": "rewards.py",
    "module": "import rewards",
    "name": "from rewards import\nReward",
    "instance": "reward = Reward()",
    "trainer": "Trainer([reward])",
    "worker": "a process with its\nown import",
}


# ---------------------------------------------------------------------------------------------- one line, two texts


def two_texts(in_memory: str, on_disk: str, number: int, error: str) -> Picture:
    """Some lines of the file as this process read it, and as it is now, with the traceback's line marked."""
    columns = {"what ran: the file as it was at the import": in_memory, "the file now": on_disk}
    with sheet(WIDTH, 1.75, DPI) as figure:
        title = f"The number {number} comes from the code that ran, the text of line {number} from the file"
        figure.text(0.01, 0.97, title, va="top", size=9.5, weight="bold", color=INK)
        for place, (name, text) in enumerate(columns.items()):
            left = 0.02 + 0.5 * place
            figure.text(left, 0.74, name, size=8.5, weight="bold", color=(OLD, NEW)[place])
            lines = text.strip().splitlines()
            for row, at in enumerate(range(number - 2, number + 2)):
                if not 1 <= at <= len(lines):
                    continue
                look: dict[str, Any] = {"color": GREY}
                if at == number:
                    look = {"color": FAR, "weight": "bold"}
                words = f"{at:2}  {lines[at - 1]}"
                figure.text(left, 0.58 - 0.13 * row, words, size=7.2, **MONO, **look)
        figure.text(0.02, 0.03, f"The error: {error}", size=8.5, color=FAR, weight="bold")
        small = png(figure)
    return Picture(small, f"line {number} in memory and on disk")


# ------------------------------------------------------------------------------------------------------- the chain


def draw_chain(
    axes: Any, boxes: Mapping[str, int], disk: int, below: str, codes: Mapping[str, str] = CODES
) -> None:
    """Boxes with the version that each runs: green where it is the file's, orange where it is an older one.

    boxes  name -> version; 0 where it did not answer. The worker stands below the others: it read the file itself
    below  a line of text
    """
    axes.set(xlim=(0, 10.2), ylim=(-1.55, 1.05), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    row = {"disk": disk} | {name: number for name, number in boxes.items() if name != "worker"}
    for place, (name, number) in enumerate(row.items()):
        left = 0.05 + 2.05 * place
        _box(axes, left, 0.05, name, number, disk, codes)
        if place:
            _arrow(axes, (left - 0.35, 0.5), (left, 0.5))
    _box(axes, 2.1, -1.35, "worker", boxes["worker"], disk, codes)
    axes.plot([0.9, 0.9], [0.05, -0.9], color=GREY, lw=1.2)
    _arrow(axes, (0.9, -0.9), (2.1, -0.9))
    axes.text(4.2, -0.9, below, size=8.5, va="center", color=INK)


def _box(
    axes: Any, left: float, foot: float, name: str, number: int, disk: int, codes: Mapping[str, str]
) -> None:
    from matplotlib.patches import Rectangle

    colour = OLD
    if number == disk:
        colour = NEW
    axes.add_patch(Rectangle((left, foot), 1.7, 0.95, fc="white", ec=colour, lw=1.6))
    axes.add_patch(Rectangle((left + 1.32, foot + 0.5), 0.38, 0.45, fc=colour, ec=colour))
    centred = {"ha": "center", "va": "center"}
    shown = str(number)
    if not number:
        shown = "×"
    axes.text(left + 1.51, foot + 0.72, shown, size=10, color="white", weight="bold", **centred)
    axes.text(left + 0.08, foot + 0.72, name, size=8.5, weight="bold", va="center", color=INK)
    axes.text(left + 0.08, foot + 0.25, codes[name], size=6, va="center", color=INK, **MONO)


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": GREY, "lw": 1.2})


def words_of(sequence: Sequence[str], restart: str) -> str:
    """What was pressed, as the line below the boxes."""
    steps = [button.replace("_", " ") for button in sequence]
    if restart in ("kernel", "both"):
        steps = ["restart kernel, run all"]
    if restart in ("worker", "both"):
        steps.append("restart worker")
    return "after the save: " + (", then ".join(steps) or "nothing")


def draw_trainer(axes: Any, frame: Mapping[str, Any] | None, disk: int) -> None:
    """The three boxes of the trainer that is refreshed."""
    if frame is None:
        axes.set_axis_off()
        axes.text(0, 0.5, "ended before it could be asked", size=9)
        return
    codes = {
        "disk": "rewards.py",
        "module": "trainer.module",
        "trainer": "trainer.reward",
        "worker": "trainer.worker",
    }
    below = f"trainer.reward.rounds is {frame['rounds']}, and was 3"
    if frame["error"]:
        below = f"{frame['error'][:60]}\n{below}"
    draw_chain(axes, frame["versions"], disk, below, codes)


def title_of(whose: str, frame: Mapping[str, Any] | None, disk: int) -> str:
    """What the refresh left, in a sentence."""
    name = "the solution's"
    if whose == "yours":
        name = "your"
    if frame is None:
        return f"With {name} refresh no process answered"
    old = [box for box, number in frame["versions"].items() if number != disk]
    if old:
        return f"After {name} refresh not at version {disk}: {', '.join(old)}"
    return f"After {name} refresh module, trainer and worker have version {disk}"


# ----------------------------------------------------------------------------------------------- the table of holders


def table_of_holders(
    measured: Mapping[str, Mapping[str, str]],
    mine: Mapping[str, Mapping[str, str]],
    whose: str,
    codes: Mapping[str, str],
) -> Picture:
    """What the processes answered, a cell for each holder and remedy; and what the reader wrote where it differs."""
    height = 0.72 + 0.32 * len(measured)
    with sheet(WIDTH, height, DPI) as figure:
        title = "Asked of real processes: no remedy within the kernel reaches the worker"
        figure.text(0.01, 1 - 0.06 / height, title, va="top", size=9.5, weight="bold", color=INK)
        axes = figure.add_axes((0, 0, 1, (height - 0.3) / height))
        axes.set(xlim=(0, 10), ylim=(-len(measured) - 0.05, 1))
        axes.set_axis_off()
        for column, remedy in enumerate(REMEDIES):
            axes.text(4.35 + 1.5 * column, 0.3, remedy, size=8.5, ha="center", weight="bold")
        for row, (holder, answers) in enumerate(measured.items()):
            axes.text(0.1, -row - 0.5, holder, size=8.5, va="center", weight="bold")
            axes.text(1.45, -row - 0.5, codes[holder], size=6.5, va="center", **MONO)
            for column, (remedy, word) in enumerate(answers.items()):
                written = mine.get(holder, {}).get(remedy, "–")
                _cell(axes, 4.35 + 1.5 * column, -row, word, written, whose)
        small = png(figure)
    return Picture(small, "the processes' answers, by holder and remedy")


def _cell(axes: Any, middle: float, top: float, word: str, written: str, whose: str) -> None:
    from matplotlib.patches import Rectangle

    colour = {"old": OLD, "new": NEW}[word]
    axes.add_patch(Rectangle((middle - 0.7, top - 0.92), 1.4, 0.84, fc=colour, ec="white"))
    text = word
    if written != word:
        text = f"{word}   ({whose}: {written})"
        axes.add_patch(Rectangle((middle - 0.7, top - 0.92), 1.4, 0.84, fc="none", ec=FAR, lw=2.2))
    size = 8.5
    if written != word:
        size = 7
    look = {"ha": "center", "va": "center", "color": "white", "weight": "bold"}
    axes.text(middle, top - 0.5, text, size=size, **look)
