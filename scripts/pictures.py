"""The pictures of README.md, taken of a real JupyterLab: docs/pictures, light and dark.

    python scripts/pictures.py            all of them
    python scripts/pictures.py page       only this one: dashboard, page or segments

Needs Chromium, as `make browser-test` does. The dashboard is lesson 03's as it moves, at the speed at which it moved.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "pictures"
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

import checks  # noqa: E402
import jupyter  # noqa: E402

from labkit.common import write_whole  # noqa: E402

LIMIT = 2_000_000  # bytes of the animated one
HOLD = 3.0  # seconds that its last frame stays


def as_bytes(frames: list[tuple[float, bytes]], end: float) -> bytes:
    """Screenshots with their times as one animated WebP; equal ones in a row are one frame."""
    kept = [frame for at, frame in enumerate(frames) if not at or frame[1] != frames[at - 1][1]]
    times = [when for when, _ in kept] + [end]
    lasts = [max(20, round(1000 * (b - a))) for a, b in zip(times, times[1:], strict=False)]
    pictures = [Image.open(io.BytesIO(png)).convert("RGB") for _, png in kept]
    size = min(p.width for p in pictures), max(p.height for p in pictures)
    same = [p.crop((0, 0, size[0], p.height)).resize(size) if p.size != size else p for p in pictures]
    lasts[-1] += round(1000 * HOLD)
    target = io.BytesIO()
    same[0].save(target, "WEBP", save_all=True, append_images=same[1:], duration=lasts, loop=0, quality=70, method=4)
    return target.getvalue()


def shown(notebook: jupyter.Notebook, words: str) -> str:
    """Scroll to the cell whose source has these words; its selector."""
    number = notebook.page.evaluate(
        """async words => {
            const book = jupyterapp.shell.currentWidget.content;
            const at = book.widgets.findIndex(cell => cell.model.sharedModel.source.includes(words));
            book.activeCellIndex = at;
            await book.scrollToItem(at, 'start').catch(() => {});  // while cells run, others scroll as well
            return at;
        }""",
        words,
    )
    return f".jp-Cell[data-windowed-list-index='{number}']"


def moving(words: str) -> Callable[[jupyter.Notebook], bytes]:
    """The dashboard of the cell that has these words, while its run goes on."""

    def take(notebook: jupyter.Notebook) -> bytes:
        notebook.restart_and_run_all()
        board = notebook.page.locator(f"{shown(notebook, words)} .jp-OutputArea-output:has(.labkit .panels)")
        stop = board.get_by_role("button", name="Stop")
        notebook.until(lambda: stop.count() and stop.is_enabled(), 200, "no run began")
        frames: list[tuple[float, bytes]] = []
        while not frames or stop.is_enabled():
            frames.append((time.monotonic(), board.screenshot()))
        notebook.page.wait_for_timeout(300)
        frames.append((time.monotonic(), board.screenshot()))
        animated = as_bytes(frames, frames[-1][0])
        if len(animated) > LIMIT:
            raise ValueError(f"the animated dashboard has {len(animated):,} bytes, expected at most {LIMIT:,}")
        return animated

    return take


def still(words: str, inside: str = "") -> Callable[[jupyter.Notebook], bytes]:
    """After a run: what `inside` finds in the cell that has these words; without it the notebook from there on."""

    def take(notebook: jupyter.Notebook) -> bytes:
        notebook.restart_and_run_all()
        checks.watch_until_done(notebook, 300)
        cell = shown(notebook, words)
        notebook.page.wait_for_timeout(800)
        found = notebook.page.locator(f"{cell} {inside}" if inside else ".jp-NotebookPanel-notebook").first
        target = io.BytesIO()
        Image.open(io.BytesIO(found.screenshot())).convert("RGB").save(target, "WEBP", lossless=True, method=6)
        return target.getvalue()

    return take


# name -> (lesson, width and height of the window, how it is taken, themes); a map is drawn on white in both themes
PICTURES = {
    "dashboard": ("03", (1000, 900), moving('label="bug"'), ("light", "dark")),
    "page": ("02", (1100, 1000), still('label="bug"'), ("light", "dark")),
    "segments": ("07", (1000, 900), still("pictures.cards(", ".jp-RenderedImage"), ("light",)),
}


def take(name: str, theme: str) -> bytes:
    lesson, (width, height), how, _ = PICTURES[name]
    source = next((ROOT / "notebooks").glob(f"{lesson}_*.ipynb"))
    with tempfile.TemporaryDirectory(prefix="labkit-pictures-") as folder:
        for part in ("notebooks", "docs"):  # a page imports its props, and reads what it links to
            shutil.copytree(ROOT / part, Path(folder) / part, ignore=shutil.ignore_patterns("__pycache__"))
        with jupyter.Lab(folder, f"JupyterLab {theme.title()}") as lab, lab.browser(width, height) as browser:
            notebook = browser.open(f"notebooks/{source.name}")
            notebook.command("application:toggle-left-area")
            notebook.page.wait_for_timeout(500)
            return how(notebook)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(PICTURES)} (default: all)")
    args = parser.parse_args()
    if wrong := sorted(set(args.names) - set(PICTURES)):
        parser.error(f"unknown: {', '.join(wrong)}; there are {', '.join(PICTURES)}")
    if why := jupyter.missing():
        parser.error(why)
    OUT.mkdir(exist_ok=True)
    used = re.findall(r"docs/pictures/([a-z-]+)\.webp", (ROOT / "README.md").read_text(encoding="utf-8"))
    for name in args.names or PICTURES:
        for theme in PICTURES[name][-1]:
            path = write_whole(OUT / f"{name}-{theme}.webp", take(name, theme))
            note = "" if path.stem in used else "; README.md does not show it"
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB{note}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
