"""What every committed notebook must be, read off the files. Its shape: test_shape.py."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from cut import FOLDER

NOTEBOOKS = sorted([*FOLDER.glob("[0-9][0-9]_*.ipynb"), *FOLDER.glob("more/*.ipynb")])


def cells(path):
    return json.loads(path.read_text())["cells"]


def code(path):
    return [c for c in cells(path) if c["cell_type"] == "code"]


def tags(cell):
    return cell["metadata"].get("tags", [])


def stdout(cell):
    return "".join("".join(o["text"]) for o in cell["outputs"] if o.get("name") == "stdout")


pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


def test_it_is_executed_from_top_to_bottom_without_an_error(path):
    counts = [c["execution_count"] for c in code(path)]
    assert counts == list(range(1, len(counts) + 1))
    assert not [o for c in code(path) for o in c["outputs"] if o["output_type"] == "error"]
    assert not [c["source"] for c in code(path) if re.search(r"^SKIP  ", stdout(c), re.MULTILINE)]


def test_it_records_nothing_of_the_machine_that_ran_it(path):
    text = path.read_text()
    for private in {str(FOLDER.parent), sys.prefix, str(Path.home()) + "/"}:
        assert private not in text, private
    assert not re.search(r"Traceback|SyntaxWarning|DeprecationWarning", "".join(map(stdout, code(path))))


def test_a_verdict_line_is_never_in_a_cell_whose_output_is_ignored(path):
    for cell in code(path):
        if re.search(r"^PASS  ", stdout(cell), re.MULTILINE):
            assert not {"nbval-ignore-output", "nbval-skip"} & set(tags(cell)), "".join(cell["source"])


def test_it_makes_claims_has_parameters_and_a_title_with_its_number(path):
    (parameters,) = [c for c in code(path) if "parameters" in tags(c)]
    assert "DEVICE" in "".join(parameters["source"]) and "SEED" in "".join(parameters["source"])
    assert sum(stdout(c).count("PASS  ") for c in code(path)) >= 4
    assert "".join(cells(path)[0]["source"]).startswith(f"# {path.name[:2]} · ")


def test_it_shows_the_bug_in_a_tagged_cell_asks_and_grades(path):
    source = "\n".join("".join(c["source"]) for c in code(path))
    no_failure = path.name.startswith("00_") or path.parent != FOLDER
    assert no_failure or any("bug" in tags(c) for c in code(path))
    assert "labkit.predict(" in source
    assert "labkit.exercise(" in source or path.stem == "00_playground"  # its tasks are solved with sliders


def test_what_gives_an_answer_away_is_folded(path):
    for cell in code(path):
        source = "".join(cell["source"])
        tells = source.startswith("labkit.predict(") or "labkit.exercise(" in source
        assert tells or "labkit.predict(" not in source, "a question stands alone in its cell"
        folded = tells or not {"hidden", "solution"}.isdisjoint(tags(cell))
        assert cell["metadata"].get("jupyter", {}).get("source_hidden", False) == folded


def test_it_is_small(path):
    assert path.stat().st_size < 300_000


def test_its_cells_have_unique_ids(path):
    ids = [c["id"] for c in cells(path)]
    assert len(set(ids)) == len(ids)


def test_it_starts_the_sandboxs_server_before_it_imports_torch_itself(path):
    text = "\n".join("".join(c["source"]) for c in code(path))
    assert 0 < text.index("import labkit\n") < text.index("labkit.warm(")
    assert "import torch" not in text or text.index("labkit.warm(") < text.index("import torch")


def test_an_exercise_is_tagged_and_every_lesson_has_mutants(path):
    for cell in code(path):
        if "labkit.exercise(" in "".join(cell["source"]):
            assert "exercise" in tags(cell)
    number = path.name[:2] + ("" if path.parent == FOLDER else "-more")
    assert (Path(__file__).parent / "mutants" / f"m{number}.py").is_file()


def test_it_names_the_causes_for_which_triage_sends_here(path):
    causes = tomllib.loads((FOLDER.parent / "labkit" / "triage" / "causes.toml").read_text())
    number = path.name[:2] + ("" if path.parent == FOLDER else "-more")
    named = [cause for cause, told in causes.items() if told.get("lesson") == number and number != "00"]
    last = "".join(["", *("".join(c["source"]) for c in cells(path) if "## Your own trainer" in "".join(c["source"]))])
    assert not [cause for cause in named if f"`{cause}`" not in last]
