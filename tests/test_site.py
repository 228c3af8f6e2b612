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


def test_a_page_that_is_run_for_the_site_has_knobs_that_turn_and_is_kept_until_it_changes(site, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_SAVED_PAGES", "1")
    draw = "labkit.explore(lambda axes, at: axes.plot([0, at]), at=[1, 2], saved=[{'at': 1}])"
    cells = [nbformat.v4.new_markdown_cell("# 03 · A page"), nbformat.v4.new_code_cell(f"import labkit\n{draw}")]
    cells.append(nbformat.v4.new_code_cell("labkit.predict('Which?', ['a', 'b'], 1, 'So.', wrong=['No.'])"))
    path = tmp_path / "03_a_page.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    book = site.alive(path, tmp_path / "kept")
    made = site.page(path, None, None, book)
    assert made.count("document.currentScript") == 2 and "spec.frames" in made and "Which?" in made
    (kept,) = (tmp_path / "kept").iterdir()
    again = json.loads(kept.read_text())
    again["cells"][0]["source"] = "# 03 · Kept"
    kept.write_text(json.dumps(again))
    assert site.alive(path, tmp_path / "kept").cells[0].source == "# 03 · Kept"
    cells[1].source += "\nprint('changed')"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    assert site.alive(path, tmp_path / "kept").cells[0].source == "# 03 · A page"
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_what_a_notebook_folds_opens_on_a_click_and_other_files_of_the_project_are_no_links(site):
    (path,) = [path for path in NOTEBOOKS if path.name.startswith("09")]
    made = site.page(path, None, None)
    assert made.count('<details class="code"><summary>solution</summary>') == 2
    assert not re.search(r'href="\.\./', made) and "docs/assertions.md" in made


def test_the_search_finds_prose_code_and_what_was_printed_without_their_marks(site):
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("The **norm** of [one](x.md) is\n\n< 0.3")])
    book.cells.append(nbformat.v4.new_code_cell("train(`a`)", outputs=[nbformat.v4.new_output("stream", text="KL 5")]))
    assert list(site.paragraphs(book)) == ["The norm of one is", "< 0.3", "train( a )", "KL 5"]


def test_every_widget_of_a_lesson_is_followed_by_what_stands_in_its_place(site):
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text())["cells"]:
            last = cell.get("outputs", [])[-1:]
            assert not [output for output in last if site.WIDGET in output.get("data", {})], (path.name, cell["source"])


def test_the_front_page_has_a_card_for_every_lesson_with_picture_and_symptom(site):
    made = site.contents(NOTEBOOKS)
    for path in NOTEBOOKS:
        card = re.search(rf'<li class="card" data-page="{path.stem}">(.*?)</li>', made, re.DOTALL)[1]
        assert f'href="{path.stem}.html"' in card and len(re.sub("<[^>]+>", "", card).split()) > 8
        assert ("<img" in card) is not path.name.startswith("00")


def test_a_recording_has_a_page_and_links_to_it_lead_there(site):
    lesson = next(path for path in NOTEBOOKS if path.name.startswith("09"))
    assert f'href="{lesson.stem}-recorded.html"' in site.page(lesson, None, None)
    assert f'href="{lesson.stem}-recorded.html"' in site.contents([lesson])
    made = site.page(site.recording(lesson), lesson, None)
    assert f'href="{lesson.stem}.html"' in made and "Recorded on NVIDIA H200" in made
