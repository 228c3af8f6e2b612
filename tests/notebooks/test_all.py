"""What every committed notebook must be, read off the files. Its form: test_form.py."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from cut import FOLDER, NOTEBOOKS, cells, folded, is_code, number_of, printed, source, tags

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code(path):
    return [cell for cell in cells(path) if is_code(cell)]


def text_of(path):
    return "\n".join(map(source, code(path)))


def test_it_is_executed_from_top_to_bottom_without_an_error_or_a_skip(path):
    assert [cell["execution_count"] for cell in code(path)] == list(range(1, len(code(path)) + 1))
    for cell in code(path):
        assert not [output for output in cell["outputs"] if output["output_type"] == "error"]
        assert not re.search(r"^SKIP  ", printed(cell), re.MULTILINE)


def test_it_is_small_and_records_nothing_of_the_machine_that_ran_it(path):
    text = path.read_text()
    for private in {str(FOLDER.parent), sys.prefix, str(Path.home()) + "/"}:
        assert private not in text, private
    assert not re.search(r"Traceback|SyntaxWarning|DeprecationWarning", "".join(map(printed, code(path))))
    assert path.stat().st_size < 400_000


def test_a_verdict_line_is_never_in_a_cell_whose_output_is_ignored(path):
    for cell in code(path):
        if re.search(r"^PASS  ", printed(cell), re.MULTILINE):
            assert not {"nbval-ignore-output", "nbval-skip"} & tags(cell), source(cell)


def test_it_has_parameters_a_title_with_its_number_cells_with_ids_of_their_own_and_mutants(path):
    (parameters,) = [source(cell) for cell in code(path) if "parameters" in tags(cell)]
    assert "DEVICE" in parameters and "SEED" in parameters
    assert source(cells(path)[0]).startswith(f"# {path.name[:2]} · ")
    ids = [cell["id"] for cell in cells(path)]
    assert len(set(ids)) == len(ids)
    assert (Path(__file__).parent / "mutants" / f"m{number_of(path)}.py").is_file()


def test_it_asks_and_what_gives_an_answer_away_is_folded(path):
    assert "labkit.predict(" in text_of(path)
    for cell in code(path):
        grades = "labkit.exercise(" in source(cell)
        asks = source(cell).startswith("labkit.predict(")
        assert asks or "labkit.predict(" not in source(cell), "a question stands alone in its cell"
        assert "exercise" in tags(cell) or not grades
        assert folded(cell) == (asks or grades or not {"hidden", "solution", "checked"}.isdisjoint(tags(cell)))


def test_it_starts_the_sandboxs_server_before_it_imports_torch_itself(path):
    text = text_of(path)
    assert 0 < text.index("import labkit\n") < text.index("labkit.warm(")
    assert "import torch" not in text or text.index("labkit.warm(") < text.index("import torch")


def test_it_names_the_causes_for_which_triage_sends_here(path):
    causes = tomllib.loads((FOLDER.parent / "labkit" / "triage" / "causes.toml").read_text())
    _, _, last = "\n".join(source(cell) for cell in cells(path)).partition("## Your own trainer")
    for name, cause in causes.items():
        sent_here = cause.get("lesson") == number_of(path) and number_of(path) != "00"
        assert not sent_here or f"`{name}`" in last
