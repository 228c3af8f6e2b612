"""What libraries say, as data: the texts, how they are found in a line."""

import ast
import json
from importlib import metadata, util
from pathlib import Path

import pytest

from labkit import triage
from labkit.triage import vocabulary

ROOT = Path(__file__).parent.parent.parent
TRIAGE = ROOT / "labkit" / "triage"
TEXTS = [json.loads(line) for line in (TRIAGE / "vocabulary.jsonl").read_text(encoding="utf-8").splitlines()]
CLASSES = {rule.name.removeprefix("vocabulary/") for rule in triage.RULES if rule.name.startswith("vocabulary/")}


@pytest.fixture
def script():
    spec = util.spec_from_file_location("vocabulary_script", ROOT / "scripts" / "vocabulary.py")
    module = util.module_from_spec(spec)
    import sys

    sys.modules["vocabulary_script"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["vocabulary_script"]


def test_every_text_has_a_class_and_stands_once():
    assert {row["class"] for row in TEXTS} <= CLASSES | {"notice"}
    assert len({(row["in"].split()[0], row["kind"] == "looked up", row["text"]) for row in TEXTS}) == len(TEXTS)
    libraries = {row["in"].split()[0] for row in TEXTS if row["kind"] != "looked up"}
    assert libraries >= {"trl", "transformers", "accelerate", "peft", "datasets", "torch", "vllm", "verl", "deepspeed"}


def test_a_text_is_found_with_values_in_its_place_and_only_where_an_error_is_raised():
    told = "ValueError: The number of required GPUs exceeds the total number of available GPUs in the cluster."
    said = next(
        row for row in TEXTS if row["kind"] == "raise" and row["text"].count("{}") == 1 and len(row["text"]) > 60
    )
    line = "ValueError: " + said["text"].replace("{}", "17")
    assert vocabulary.find(line, 0) is not None
    assert vocabulary.find(line.removeprefix("ValueError: ").replace("rror", "rr0r"), 0) is None
    assert vocabulary.find(told[:20], 0) is None


def test_what_a_library_raises_is_a_finding_with_its_library_and_what_to_do():
    line = "ValueError: num_generations must be greater than 0, but got 0.\n"
    row = next(row for row in TEXTS if row["class"] == "padding" and row["kind"] == "raise" and "{}" not in row["text"])
    (finding, *_) = triage.diagnose(f"Traceback (most recent call last):\nValueError: {row['text']}\n").findings
    assert finding.cause == "padding-or-mask" and finding.next and row["in"] in finding.evidence[0]
    assert "healthy-normal" not in [found.cause for found in triage.diagnose(line).findings]


def test_a_notice_is_no_finding():
    row = next(row for row in TEXTS if row["class"] == "notice" and "{}" not in row["text"])
    assert not triage.diagnose(f"UserWarning: {row['text']}\n").findings


def test_the_script_finds_what_a_file_raises_asserts_and_warns(script, tmp_path):
    (tmp_path / "a.py").write_text(
        "def f(n, m):\n"
        "    if n:\n"
        "        raise ValueError(f'the group has {n} completions, ' + 'and needs two')\n"
        "    assert m, 'the batch of %d rows is empty' % m\n"
        "    logger.warning('the rate {} is unusually small'.format(m))\n"
        "    raise KeyError(n)\n"
    )
    sites = {site.kind: site for site in script.texts(tmp_path / "a.py", "a.py")}
    assert sites["raise"].text == "the group has {} completions, and needs two" and sites["raise"].error == "ValueError"
    assert sites["assert"].text == "the batch of {} rows is empty"
    assert sites["warn"].text == "the rate {} is unusually small" and sites["warn"].where == "a.py:5"


def test_the_page_counts_what_the_installed_libraries_say(script):
    page = (ROOT / "docs" / "vocabulary.md").read_text(encoding="utf-8")
    folder, version = script.installed("trl")
    sites = script.library("trl", folder)
    known = {row["text"] for row in TEXTS if row["in"] == f"trl {version}"}
    if version != metadata.version("trl") or f"| trl | {version} |" not in page:
        pytest.skip(f"the page is of another trl than {version}")
    assert f"| trl | {version} | {len(sites)} | {sum(site.text in known for site in sites)} (" in page


def test_the_files_that_the_script_reads_can_be_parsed(script):
    folder, _ = script.installed("trl")
    paths = [path for pattern in script.FILES["trl"].split() for path in folder.glob(pattern)]
    assert len(paths) > 10 and all(ast.parse(path.read_text(encoding="utf-8")) for path in paths[:3])
