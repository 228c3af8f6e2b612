"""The curves that people arrive with, a small picture for each lesson: docs/pictures/gallery, and all in one figure.

    python scripts/gallery.py            all of them, then docs/pictures/gallery.webp
    python scripts/gallery.py 03 14      only these, then the figure

No curve is drawn by hand. For each lesson the cells of its page are run until the names that `draw` asks for are there,
with the page's own seed; what is drawn is what these names hold.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "pictures" / "gallery"
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "notebooks")]

import claims  # noqa: E402

from labkit.common import write_whole  # noqa: E402
from labkit.display.panels import DASHES, TONES  # noqa: E402
from labkit.display.sheet import GREY, INK, sheet  # noqa: E402

WIDTH, HEIGHT, DPI = 2.6, 1.5, 110  # inches of one picture, and dots an inch
ACROSS = 3  # pictures side by side in the figure
BUG, FIX, HEALTHY, DARK = (TONES[name][0] for name in ("bug", "fix", "healthy", "without"))
OTHER = GREY  # what the bug is held against: a plan, a card, the other objective
GIB = 2**30
Space = dict[str, Any]  # what the cells of a page have defined


@dataclass(frozen=True)
class Picture:
    """One small picture.

    lesson   its number: the page is found by it
    label    what is drawn, above the picture
    names    what the page's cells must have defined
    draw     called with the axes and the page's names
    """

    lesson: str
    label: str
    names: Sequence[str]
    draw: Callable[[Any, Space], None]


# ------------------------------------------------------------------------------------------------- how to draw


def line(axes: Any, values: Iterable[float], colour: str, tone: str = "", **style: Any) -> None:
    """A curve; it ends in a cross where its next value is not finite."""
    finite: list[float] = []
    for value in values:
        if not math.isfinite(value):
            cross(axes, len(finite) - 0.5, finite[-1] if finite else 0.0, colour)
            break
        finite.append(value)
    if tone in DASHES:
        style["dashes"] = DASHES[tone]
    axes.plot(finite, color=colour, lw=2, clip_on=False, **style)


def cross(axes: Any, x: float, y: float, colour: str = BUG) -> None:
    axes.plot(x, y, "X", ms=11, color=colour, clip_on=False, zorder=5)


def bars(axes: Any, heights: dict[str, float], colours: Sequence[str]) -> None:
    """Bars with their names below and their heights in them."""
    for at, (height, colour) in enumerate(zip(heights.values(), colours, strict=True)):
        axes.bar(at, height, 0.62, color=colour)
        axes.text(at, height, f"{height:.3g}", ha="center", va="bottom", size=8, color=INK)
    axes.set_xticks(range(len(heights)), list(heights), size=7.5)
    axes.set_ylim(0, 1.2 * max(heights.values()))


def named(axes: Any, x: float, y: float, text: str, colour: str, where: str = "left") -> None:
    """A curve's name, in the unit square of the axes."""
    axes.text(x, y, text, transform=axes.transAxes, size=7.5, color=colour, ha=where, va="center")


# --------------------------------------------------------------------------------------------- the lessons, one each


def gradient_norm(axes: Any, page: Space) -> None:
    line(axes, page["bug"]["grad_norm"], BUG)
    axes.set_yscale("log")


def two_kls(axes: Any, page: Space) -> None:
    run = page["with_bug"][page["LAST_NOT_SOLVED"]][0]
    line(axes, run["kl/max"], BUG)
    line(axes, run["kl/add"], OTHER)


def kl_explodes(axes: Any, page: Space) -> None:
    line(axes, page["bug"]["kl"], BUG)
    axes.set_yscale("symlog", linthresh=0.1)
    named(axes, 0.3, 0.9, f"highest {max(page['bug']['kl']):,.0f}", BUG)


def one_kind_left_behind(axes: Any, page: Space) -> None:
    line(axes, page["bug"].exam("first-token sums"), BUG)
    line(axes, page["bug"].exam("second-token sums"), OTHER)
    named(axes, 0.98, 0.4, "wrong in the 1st token", BUG, "right")
    named(axes, 0.02, 0.95, "in the 2nd", OTHER)


def stairs(axes: Any, page: Space) -> None:
    held = [size / GIB for size in page["lab"].held(page["bug"])]
    axes.step(range(1, len(held) + 1), held, where="mid", color=BUG, lw=2)
    cross(axes, len(held), held[-1])
    named(axes, 0.02, 0.93, f"{held[0]:.2f} to {held[-1]:.2f}", BUG)


def twice_its_size(axes: Any, page: Space) -> None:
    kib = 1024
    bars(axes, {"planned": page["plan"] / kib, "in memory": page["size"] / kib}, (OTHER, BUG))


def free_and_refused(axes: Any, page: Space) -> None:
    lab, bug = page["lab"], page["bug"]
    pieces = [piece for segment in lab.moments(bug)[page["refused"]]["segments"] for piece in segment]
    unused = sum(size for what, size in pieces if what == "free")
    heights = {"asked for": page["asked"] / GIB, "free": lab.value(bug, "free") / GIB, "unallocated": unused / GIB}
    bars(axes, heights, (BUG, OTHER, OTHER))
    cross(axes, 0, page["asked"] / GIB / 2, "white")


def no_spread(axes: Any, page: Space) -> None:
    line(axes, page["healthy"]["reward_std"], HEALTHY)
    line(axes, page["bug"]["reward_std"], BUG)


def dead_at_once(axes: Any, page: Space) -> None:
    exams = page["healthy"].exam("add")
    line(axes, exams, HEALTHY, "healthy")
    cross(axes, 0, page["bug"].exam("add")[0])


def two_do_the_work_of_one(axes: Any, page: Space) -> None:
    # every second round has an exam
    line(axes, page["bug"].exam("add"), BUG)
    line(axes, page["alone"].exam("add"), DARK, "without")
    named(axes, 0.98, 0.14, "two processes", BUG, "right")
    named(axes, 0.98, 0.3, "one process", DARK, "right")


def over_the_card(axes: Any, page: Space) -> None:
    bars(axes, {"at its peak": page["whole"].peak, "the card": 8.0}, (BUG, OTHER))


def reward_up_length_down(axes: Any, page: Space) -> None:
    reward, digits = page["bug"]["reward"], page["bug"]["digits"]
    line(axes, reward, BUG)
    named(axes, 0.0, -0.1, f"reward {reward[0]:.2f} to {reward[-1]:.2f}", BUG)
    second = axes.twinx()
    second.set_yticks([])
    second.spines[:].set_visible(False)
    line(second, digits, DARK, "without")
    named(axes, 0.98, -0.1, f"digits {digits[0]:.2f} to {digits[-1]:.2f}", DARK, "right")


def dies_again(axes: Any, page: Space) -> None:
    done = [page["lab"].rounds_done(page[name]) for name in ("first", "again")]
    for row, (rounds, name) in enumerate(zip(done, ("with the bug", "mended on disk"), strict=True)):
        axes.plot(range(rounds), [-row] * rounds, "o-", color=HEALTHY, lw=2, ms=7, clip_on=False)
        cross(axes, rounds, -row)
        axes.text(-0.2, -row + 0.38, name, size=7.5, color=INK)
    axes.set_ylim(-1.5, 0.8)
    axes.set_xlim(-0.3, max(done) + 0.3)


def up_then_down(axes: Any, page: Space) -> None:
    line(axes, page["bug"].exam(), BUG)


def whose_memory(axes: Any, page: Space) -> None:
    one = page["one"]
    heights = {"the card": one["total"] / GIB, "in tensors": one["allocated"] / GIB, "asked for": one["asked"] / GIB}
    bars(axes, heights, (OTHER, OTHER, BUG))
    cross(axes, 2, one["asked"] / GIB / 2, "white")


def nothing_to_see(axes: Any, page: Space) -> None:
    line(axes, page["no_pads"].exam("add"), HEALTHY, "without pads")
    line(axes, page["bug"].exam("add"), BUG)
    first = f"first ratio {page['bug']['ratio_max'][0]:.2f}, first KL {page['bug']['kl'][0]:.2f}"
    named(axes, 0.98, -0.1, first, BUG, "right")


def the_reward_sinks(axes: Any, page: Space) -> None:
    line(axes, page["healthy"].exam("add"), HEALTHY, "healthy")
    line(axes, page["bug"].exam("add"), BUG)
    named(axes, 0.9, 0.2, "bug", BUG, "right")


def mystery(axes: Any, page: Space) -> None:
    by_round = list(zip(*(run.log["reward"] for run in page["sound"]), strict=True))
    low, high = [min(each) for each in by_round], [max(each) for each in by_round]
    axes.fill_between(range(len(low)), low, high, color=HEALTHY, alpha=0.3, lw=0)
    line(axes, page["log"]["reward"], BUG)
    named(axes, 0.9, 0.1, "?", BUG, "right")


PICTURES = [
    Picture("01", "gradient norm (log), then NaN", ("bug",), gradient_norm),
    Picture("02", "KL of two objectives", ("with_bug", "LAST_NOT_SOLVED"), two_kls),
    Picture("03", "KL (log)", ("bug",), kl_explodes),
    Picture("04", "exams of two kinds of sums", ("bug",), one_kind_left_behind),
    Picture("05", "GiB held, by update", ("bug",), stairs),
    Picture("06", "KV cache, KiB", ("plan", "size"), twice_its_size),
    Picture("07", "GiB when memory ran out", ("bug", "refused", "asked"), free_and_refused),
    Picture("08", "reward's deviation in a group", ("bug", "healthy"), no_spread),
    Picture("09", "exam: dead before update 1", ("bug", "healthy"), dead_at_once),
    Picture("10", "exam", ("bug", "alone"), two_do_the_work_of_one),
    Picture("11", "GiB of one update (simulated)", ("whole",), over_the_card),
    Picture("12", "reward and length", ("bug",), reward_up_length_down),
    Picture("13", "rounds until it dies", ("first", "again"), dies_again),
    Picture("14", "exam", ("bug",), up_then_down),
    Picture("15", "GiB in a public message", ("one",), whose_memory),
    Picture("16", "exam", ("bug", "no_pads"), nothing_to_see),
    Picture("17", "exam of a TRL run", ("healthy", "bug"), the_reward_sinks),
    Picture("18", "reward, and sound runs", ("sound", "log"), mystery),
]


# --------------------------------------------------------------------------------------------------- how it is made


def played(picture: Picture) -> Space:
    """The names of a page, once its cells were run far enough. SystemExit names what no cell has defined."""
    os.chdir(claims.FOLDER)
    runner = claims.Runner(picture.lesson)
    main = types.ModuleType("__main__")
    main.__dict__.update(display=lambda *_, **__: None)
    # as in a kernel: there cloudpickle takes functions by value
    sys.modules["__main__"] = main
    import labkit
    import labkit.verdicts

    labkit.verdict = labkit.verdicts.verdict = runner.verdict
    for at, _, source in claims.code_of(picture.lesson):
        runner.cell(f"<lesson {picture.lesson}, cell {at}>", source, main.__dict__)
        if set(picture.names) <= main.__dict__.keys():
            return main.__dict__
    missing = sorted(set(picture.names) - main.__dict__.keys())
    raise SystemExit(f"lesson {picture.lesson}: no cell has defined {missing}; {runner.made.errors}")


def take(picture: Picture) -> Path:
    """Run a page and draw its picture."""
    page = played(picture)
    with sheet(WIDTH, HEIGHT, DPI) as figure:
        axes = figure.add_axes((0.06, 0.14, 0.88, 0.66))
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(GREY)
        axes.set_xticks([])
        picture.draw(axes, page)
        axes.set_yticks([])
        axes.minorticks_off()
        figure.text(0.03, 0.96, picture.label, size=9, weight="bold", color=INK, va="top")
        return write_whole(OUT / f"{picture.lesson}.webp", as_webp(figure))


def as_webp(figure: Any) -> bytes:
    from PIL import Image

    figure.canvas.draw()
    size, pixels = figure.canvas.get_width_height(), figure.canvas.buffer_rgba()
    file = io.BytesIO()
    Image.frombuffer("RGBA", size, pixels, "raw", "RGBA", 0, 1).convert("RGB").save(file, "WEBP", quality=80, method=6)
    return file.getvalue()


def together() -> Path:
    """All pictures in one figure, each with its lesson's number."""
    from PIL import Image

    rows = math.ceil(len(PICTURES) / ACROSS)
    with sheet(ACROSS * (WIDTH + 0.1), rows * (HEIGHT + 0.1), DPI) as figure:
        for at, picture in enumerate(PICTURES):
            place = (at % ACROSS / ACROSS, 1 - (at // ACROSS + 1) / rows, 0.98 / ACROSS, 0.95 / rows)
            axes = figure.add_axes(place)
            axes.set_axis_off()
            axes.imshow(Image.open(OUT / f"{picture.lesson}.webp"))
            axes.text(0.97, 0.97, picture.lesson, transform=axes.transAxes, ha="right", va="top", size=11, color=GREY)
        return write_whole(OUT.with_suffix(".webp"), as_webp(figure))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {picture.lesson: picture for picture in PICTURES}
    parser.add_argument("lessons", nargs="*", metavar="NN", help="default: all")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # in this process
    args = parser.parse_args()
    if unknown := sorted(set(args.lessons) - set(known)):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    OUT.mkdir(parents=True, exist_ok=True)
    if args.one:
        path = take(known[args.lessons[0]])
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB", flush=True)
        import labkit.sandbox

        labkit.sandbox.shutdown()
        os._exit(0)
    for number in args.lessons or known:
        # a page changes its process: its directory, its modules, its `__main__`
        subprocess.run([sys.executable, __file__, number, "--one"], check=True)
    path = together()
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
