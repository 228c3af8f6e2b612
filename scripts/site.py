"""All lessons as a small static site, for people who have not installed anything.

    python scripts/site.py [--out out/site]     pages of the fourth edition are run: knobs turn, questions answer
    python scripts/site.py --as-committed       nothing is run: a knob's named positions stand side by side

One page for each notebook, with its outputs, one for each recording from a GPU, and a contents page. The pages need no
network and no kernel. Pictures are inside them; in the place of a widget stands its picture or text.
"""

from __future__ import annotations

import argparse
import base64
import html
import os
import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from traitlets.config import Config

from labkit import lessons
from labkit.common import write_whole

RECORDED = Path(__file__).resolve().parent.parent / "docs" / "recorded"
WIDGET = "application/vnd.jupyter.widget-view+json"
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem;
       color-scheme: light dark; }
td { padding: .3rem 1rem .3rem 0; vertical-align: top; }
"""


def alive(path: Path) -> nbformat.NotebookNode | None:
    """The notebook run anew, so that its knobs hold every position; None where it has none to turn.

    A committed page holds named positions alone: see `labkit.explore`.
    """
    book = nbformat.read(path, as_version=4)
    if "checked" not in book.cells[-1].metadata.get("tags", []):
        return None
    os.environ.pop("LABKIT_SAVED_PAGES", None)
    options = {"timeout": 600, "kernel_name": "python3", "store_widget_state": False}
    place = {"metadata": {"path": str(path.parent)}}
    quiet = ["--IPKernelApp.log_level=ERROR"]
    NotebookClient(book, resources=place, extra_arguments=quiet, **options).execute()
    return book


def page(path: Path, before: Path | None, after: Path | None, book: nbformat.NotebookNode | None = None) -> str:
    """One notebook as HTML, with links to its neighbours and the contents; as it is committed, or as `book` has it."""
    book = book or nbformat.read(path, as_version=4)
    for cell in book.cells:
        # No kernel is behind a widget, and every widget of a lesson is followed by its picture or its text.
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
            if cell.metadata.get("jupyter", {}).get("source_hidden"):
                cell.transient = {"remove_source": True}
    # no require.js, no MathJax, no mermaid: they would come from a network, and no lesson needs them
    settings = Config({"HTMLExporter": {"require_js_url": "", "mathjax_url": "", "theme": "light"}})
    body, _ = HTMLExporter(config=settings).from_notebook_node(book, {"metadata": {"name": title(path)}})
    ways = [(before, "← {}"), (Path("index.html"), "all lessons"), (after, "{} →")]
    links = [f'<a href="{p.stem}.html">{html.escape(text.format(p.stem[:2]))}</a>' for p, text in ways if p]
    # a link to a recording leads to its page here
    body = re.sub(
        r'href="(?:\.\./)+(?:docs/)?recorded/(?:more/)?(\w+)\.(?:ipynb|html)"', r'href="\1-recorded.html"', body
    )
    # a link to another lesson leads to its page here
    body = re.sub(r'href="(?:\.\./)*(?:notebooks/)?(?:more/)?(\d\d_\w+)\.(?:ipynb|html)"', r'href="\1.html"', body)
    # nbconvert embeds what it knows the type of, and Python before 3.13 does not know WebP
    body = re.sub(r'src="(?:\.\./)+(?:docs/)?(pictures/[\w/.-]+\.webp)"', lambda link: embedded(link[1]), body)
    bar = f'<nav style="padding: 1rem 4rem; font: 14px system-ui">{" · ".join(links)}</nav>'
    body = re.sub(
        r'<script type="module">(?:(?!</script>).)*?mermaid.*?</script>|<script src=""></script>', "", body, flags=re.S
    )
    return re.sub(r"(<body[^>]*>)", rf"\1{bar}", body, count=1).replace("</body>", f"{bar}</body>")


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


def contents(paths: list[Path]) -> str:
    """The first page: every lesson, and its first paragraph."""
    rows = []
    for path in paths:
        first = nbformat.read(path, as_version=4).cells[0].source.split("\n\n")[1]
        first = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", first.replace("\n", " "))  # a link is its words here
        first = re.sub(r" You need lessons? [^.]*\.| This takes about \d+ minutes\.", "", f" {first}")
        said = html.escape(re.sub(r"[*`>]", "", first).strip().removesuffix(":"))
        name = f'<a href="{path.stem}.html">{html.escape(title(path))}</a>'
        if recording(path):
            name += f'<br><a href="{path.stem}-recorded.html">on a GPU</a>'
        rows.append(f"<tr><td>{name}</td><td>{said}</td></tr>")
    table = "\n".join(rows)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>The GRPO failure lab</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>
<body><h1>The GRPO failure lab</h1>
<p>Each lesson makes one failure of GRPO training happen for real. These pages are for reading; the notebooks run.</p>
<table>{table}</table></body></html>
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/site"), metavar="DIR")
    parser.add_argument("--as-committed", action="store_true", help="run nothing: takes seconds, and no knob turns")
    args = parser.parse_args()
    out = args.out
    paths = [lesson.path for lesson in lessons.choose(lessons.folder())]
    for i, path in enumerate(paths):
        before, after = paths[i - 1] if i else None, paths[i + 1] if i + 1 < len(paths) else None
        book = None if args.as_committed else alive(path)
        write_whole(out / f"{path.stem}.html", page(path, before, after, book))
        print(f"{out / path.stem}.html")
        if recorded := recording(path):
            write_whole(out / f"{path.stem}-recorded.html", page(recorded, path, None))
    write_whole(out / "index.html", contents(paths))
    print(f"{out / 'index.html'}: open this one")


if __name__ == "__main__":
    main()
