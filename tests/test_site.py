"""The static site: complete, readable without a network, and without dead widgets."""

import json
import re
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))


@pytest.fixture
def site(script):
    return script("site")


def outputs(path):
    return [output for cell in json.loads(path.read_text())["cells"] for output in cell.get("outputs", [])]


@pytest.mark.parametrize("path", NOTEBOOKS[:3], ids=lambda path: path.stem)
def test_a_page_has_all_outputs_and_asks_nobody_for_anything(site, path):
    made = site.page(path, NOTEBOOKS[0], NOTEBOOKS[-1])
    assert not re.search(r"""<(script|link|img|iframe)[^>]*(src|href)=["']?http""", made)
    assert "import(" not in made and "mermaid.esm" not in made and "widget-view+json" not in made
    pictures = re.findall(r'<img[^>]*src="data:image/png', made)
    assert len(pictures) == sum("image/png" in output.get("data", {}) for output in outputs(path))
    printed = "".join("".join(output["text"]) for output in outputs(path) if output["output_type"] == "stream")
    assert made.count("PASS  ") >= printed.count("PASS  ") >= 6
    assert f'href="{NOTEBOOKS[0].stem}.html"' in made and f'href="{NOTEBOOKS[-1].stem}.html"' in made


def test_links_between_lessons_lead_to_pages_of_the_site(site):
    (path,) = [path for path in NOTEBOOKS if path.name.startswith("03")]
    made = site.page(path, None, None)
    assert 'href="00_start_here.html"' in made and 'href="03_kl_laboratory.html"' in made
    assert not re.search(r'href="[^"]*\d\d_\w+\.ipynb"', made)


def test_a_page_that_is_run_for_the_site_has_knobs_that_turn_and_questions_that_answer(site, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_SAVED_PAGES", "1")
    draw = "labkit.explore(lambda axes, at: axes.plot([0, at]), at=[1, 2], saved=[{'at': 1}])"
    cells = [nbformat.v4.new_markdown_cell("# 03 · A page"), nbformat.v4.new_code_cell(f"import labkit\n{draw}")]
    cells.append(nbformat.v4.new_code_cell("labkit.predict('Which?', ['a', 'b'], 1, 'So.', wrong=['No.'])"))
    cells[-1].metadata["tags"] = ["checked"]
    path = tmp_path / "03_a_page.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    book = site.alive(path)
    made = site.page(path, None, None, book)
    assert made.count("document.currentScript") == 2 and "spec.frames" in made and "Which?" in made
    cells[-1].metadata["tags"] = []
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    assert site.alive(path) is None  # without knobs in the form of the fourth edition: as it is committed


def test_every_widget_of_a_lesson_is_followed_by_what_stands_in_its_place(site):
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text())["cells"]:
            last = cell.get("outputs", [])[-1:]
            assert not [output for output in last if site.WIDGET in output.get("data", {})], (path.name, cell["source"])


def test_the_contents_name_every_lesson(site):
    made = site.contents(NOTEBOOKS)
    for path in NOTEBOOKS:
        assert f'href="{path.stem}.html"' in made and site.title(path).split(" · ")[1].split(":")[0] in made


def test_a_recording_has_a_page_and_links_to_it_lead_there(site):
    lesson = next(path for path in NOTEBOOKS if path.name.startswith("09"))
    assert f'href="{lesson.stem}-recorded.html"' in site.page(lesson, None, None)
    assert f'href="{lesson.stem}-recorded.html"' in site.contents([lesson])
    made = site.page(site.recording(lesson), lesson, None)
    assert f'href="{lesson.stem}.html"' in made and "Recorded on NVIDIA H200" in made
