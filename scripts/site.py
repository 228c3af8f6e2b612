"""All lessons as a static site, for people who have not installed anything.

    python scripts/site.py [NN ...]              the pages are run first, so that knobs turn and questions answer
    python scripts/site.py --as-committed        nothing is run: a knob's named positions stand side by side

The front page is the gallery, with a search. There is a page for each notebook, and one for each recording from a GPU.
They need no network, no server and no kernel: open out/site/index.html. What was run is kept in out/site-runs until a
page, its props or labkit changes.
"""

from __future__ import annotations

import argparse
import base64
import functools
import hashlib
import html
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from pygments.formatters import HtmlFormatter

from labkit import lessons
from labkit.common import write_whole

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "docs" / "recorded"
GALLERY = ROOT / "docs" / "pictures" / "gallery"
FILES = Path(__file__).resolve().parent / "site_files"
WIDGET = "application/vnd.jupyter.widget-view+json"
# labkit's figures ask the page for its theme as JupyterLab's say it
THEME = """<script>(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const tell = () => { document.body.dataset.jpThemeLight = String(!dark.matches); };
  dark.addEventListener("change", tell);
  tell();
})();</script>"""
INSTALL = """<details><summary>Run the notebooks yourself</summary>
<pre>make course     # set up .venv, run every lesson headless, check every verdict
make lab        # open JupyterLab on the first lesson</pre>
<p>You need the project's folder, Python 3.11 or newer, <code>make</code>, and about 2 GB of disk; no GPU.</p>
</details>"""

# ------------------------------------------------------------------------------------------------------ running


def alive(path: Path, kept_in: Path) -> nbformat.NotebookNode:
    """The notebook run anew, so that its knobs hold every position; from `kept_in` where nothing has changed.

    A committed page holds named positions alone: see `labkit.explore`.
    """
    book = nbformat.read(path, as_version=4)
    kept = kept_in / f"{path.stem}-{_key(book)}.ipynb"
    if kept.is_file():
        return nbformat.read(kept, as_version=4)
    os.environ.pop("LABKIT_SAVED_PAGES", None)
    options = {"timeout": 600, "kernel_name": "python3", "store_widget_state": False}
    place = {"metadata": {"path": str(path.parent)}}
    quiet = ["--IPKernelApp.log_level=ERROR"]
    NotebookClient(book, resources=place, extra_arguments=quiet, **options).execute()
    for older in kept_in.glob(f"{path.stem}-*.ipynb"):
        older.unlink()
    write_whole(kept, nbformat.writes(book))
    return book


def _key(book: nbformat.NotebookNode) -> str:
    """Of what a run depends on: the page's code, its props, labkit."""
    digest = hashlib.sha256(_code_behind_all_pages().encode())
    for cell in book.cells:
        digest.update(cell.source.encode())
    return digest.hexdigest()[:16]


@functools.cache
def _code_behind_all_pages() -> str:
    files = [*(ROOT / "labkit").rglob("*.py"), *(ROOT / "labkit").rglob("*.js")]
    files += (ROOT / "notebooks" / "props").rglob("*.py")
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted(files))


# ------------------------------------------------------------------------------------------------------ a page


def page(path: Path, before: Path | None, after: Path | None, book: nbformat.NotebookNode | None = None) -> str:
    """One notebook as HTML, with links to its neighbours and the front page; as committed, or as `book` has it."""
    book = book or nbformat.read(path, as_version=4)
    for cell in book.cells:
        # No kernel is behind a widget, and every widget of a lesson is followed by its picture or its text.
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
    body, _ = _exporter().from_notebook_node(book)
    # a link to a recording, or to another lesson, leads to its page here
    body = re.sub(
        r'href="(?:\.\./)+(?:docs/)?recorded/(?:more/)?(\w+)\.(?:ipynb|html)"', r'href="\1-recorded.html"', body
    )
    body = re.sub(r'href="(?:\.\./)*(?:notebooks/)?(?:more/)?(\d\d_\w+)\.(?:ipynb|html)"', r'href="\1.html"', body)
    # other files of the project are not part of the site: their words stay
    body = re.sub(r'<a href="(?:\.\./)+[^"]*">(.*?)</a>', r"\1", body)
    body = re.sub(r'src="(?:\.\./)+(?:docs/)?(pictures/[\w/.-]+\.webp)"', lambda link: embedded(link[1]), body)
    body = body.replace("<img ", '<img loading="lazy" ')
    ways = [(before, "← {}"), (Path("index.html"), "all lessons"), (after, "{} →")]
    links = [f'<a href="{p.stem}.html">{html.escape(text.format(p.stem[:2]))}</a>' if p else "" for p, text in ways]
    if RECORDED not in path.parents and recording(path):
        links[1] += f' · <a href="{path.stem}-recorded.html">recorded on a GPU</a>'
    bar = f'<nav class="bar">{"".join(f"<span>{link}</span>" for link in links)}</nav>'
    return document(title(path), f"{bar}<main>{body}</main>{bar}")


@functools.cache
def _exporter() -> HTMLExporter:
    return HTMLExporter(raw_template=(FILES / "page.html.j2").read_text(encoding="utf-8"))


def document(name: str, body: str) -> str:
    """A whole HTML page that asks nobody for anything."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(name)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_style()}</style></head>
<body>{THEME}{body}</body></html>
"""


@functools.cache
def _style() -> str:
    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    field = ".highlight { background: none; }"
    own = (FILES / "style.css").read_text(encoding="utf-8")
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{field}\n{own}"


def embedded(picture: str) -> str:
    """The `src` of a picture in `docs` that a page's text shows, with the picture in it."""
    content = base64.b64encode((RECORDED.parent / picture).read_bytes()).decode()
    return f'src="data:image/webp;base64,{content}"'


def title(path: Path) -> str:
    return f"{path.stem[:2]} · {lessons.read(path).title}"


def recording(path: Path) -> Path | None:
    """The executed copy of this lesson from a GPU, where there is one."""
    place = RECORDED / ("more" if path.parent.name == "more" else "") / path.name
    return place if place.is_file() else None


# ------------------------------------------------------------------------------------------------ the front page


def contents(paths: list[Path]) -> str:
    """The front page: a card for each page, with its picture and what a reader sees in the run; and the search."""
    seen = symptoms((ROOT / "README.md").read_text(encoding="utf-8"))
    cards = "\n".join(_card(path, seen.get(path.name, "")) for path in paths)
    search = (FILES / "search.js").read_text(encoding="utf-8")
    return document(
        "The GRPO failure lab",
        f"""<main><h1>The GRPO failure lab</h1>
<p>Each page makes one failure of GRPO training happen for real, finds its cause, and mends it. What do you see in your
run? Knobs turn and questions answer here; to write the fixes yourself, run the notebooks.</p>
{INSTALL}
<p><input type="search" aria-label="Search all pages"
  placeholder="a word of your error message, a column of your log …"></p>
<p class="count" aria-live="polite"></p>
<ul class="cards">
{cards}
</ul></main>
<script src="search-index.js"></script><script>{search}</script>""",
    )


def _card(path: Path, symptom: str) -> str:
    name, number = html.escape(title(path)), path.stem[:2]
    picture = ""
    if path.parent.name != "more" and (GALLERY / f"{number}.webp").is_file():
        picture = f'<img src="pictures/{number}.webp" alt="" loading="lazy">'
    recorded = f' <p><a href="{path.stem}-recorded.html">recorded on a GPU</a></p>' if recording(path) else ""
    text = re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(symptom))
    link = f'<a href="{path.stem}.html">{picture}{name}</a>'
    return f'<li class="card" data-page="{path.stem}">{link}<p>{text}</p>{recorded}</li>'


def symptoms(readme: str) -> dict[str, str]:
    """File of a lesson -> what a reader sees in the run, by the table of the README."""
    rows = re.findall(r"^\| \d\d \| \[[^]]*\]\(notebooks/([^)]+)\) \| (.*?) \|", readme, re.MULTILINE)
    return dict(rows)


def paragraphs(book: nbformat.NotebookNode) -> Iterator[str]:
    """The texts of a page that a search should find: prose, code, and what was printed."""
    for cell in book.cells:
        texts = [re.sub(r"\]\([^)]*\)|</?[a-z][^>]*>", " ", cell.source)]
        for output in cell.get("outputs", []):
            data: Mapping[str, str] = output.get("data", {})
            texts.append(output.get("text", "") or data.get("text/markdown", ""))
        for text in texts:
            for part in re.split(r"\n\s*\n", text):
                words = " ".join(re.sub(r"[*`#|\[\]]+", " ", part).split())
                if words:
                    yield words


# ------------------------------------------------------------------------------------------------------ all of it


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lessons", nargs="*", metavar="NN", help="only these pages are made anew; default: all")
    parser.add_argument("--out", type=Path, default=Path("out/site"), metavar="DIR")
    parser.add_argument("--as-committed", action="store_true", help="run nothing: takes seconds, and no knob turns")
    args = parser.parse_args()
    try:
        chosen = {lesson.path for lesson in lessons.choose(lessons.folder(), args.lessons)}
    except ValueError as error:
        print(f"site.py: {error}", file=sys.stderr)
        return 2
    out, kept_in = args.out, args.out.parent / "site-runs"
    paths = [lesson.path for lesson in lessons.choose(lessons.folder())]
    began = time.monotonic()
    for i, path in enumerate(paths):
        if path not in chosen:
            continue
        before, after = paths[i - 1] if i else None, paths[i + 1] if i + 1 < len(paths) else None
        start = time.monotonic()
        book = None if args.as_committed else alive(path, kept_in)
        write_whole(out / f"{path.stem}.html", page(path, before, after, book))
        if recorded := recording(path):
            write_whole(out / f"{path.stem}-recorded.html", page(recorded, path, None))
        size = (out / f"{path.stem}.html").stat().st_size / 1e6
        print(f"{i + 1:2} of {len(paths)}  {path.stem}: {size:.1f} MB, {time.monotonic() - start:.0f} s", flush=True)
    index = {path.stem: list(paragraphs(nbformat.read(path, as_version=4))) for path in paths}
    write_whole(out / "search-index.js", f"const PAGES = {json.dumps(index, ensure_ascii=False)};\n")
    (out / "pictures").mkdir(parents=True, exist_ok=True)
    for picture in GALLERY.glob("*.webp"):
        shutil.copy(picture, out / "pictures" / picture.name)
    write_whole(out / "index.html", contents(paths))
    print(f"{out / 'index.html'}: open this one ({time.monotonic() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
