"""What libraries say, as data: the texts, how they are found in a line."""

import json
from importlib import metadata
from pathlib import Path

import pytest

from labkit import triage
from labkit.triage import vocabulary

ROOT = Path(__file__).parent.parent.parent
TEXTS = [
    json.loads(line)
    for line in (ROOT / "scripts" / "triage" / "vocabulary.jsonl").read_text(encoding="utf-8").splitlines()
]
CLASSES = {rule.name.removeprefix("vocabulary/") for rule in triage.RULES if rule.name.startswith("vocabulary/")}


def text_where(**wanted):
    """The first row with these columns whose text has no value in it."""
    return next(row for row in TEXTS if wanted.items() <= row.items() and "{}" not in row["text"])


def test_every_text_has_a_class_and_stands_once():
    assert {row["class"] for row in TEXTS} <= CLASSES | {"notice"}
    assert len({(row["in"].split()[0], row["kind"] == "looked up", row["text"]) for row in TEXTS}) == len(TEXTS)
    libraries = {row["in"].split()[0] for row in TEXTS if row["kind"] != "looked up"}
    assert libraries >= {"trl", "transformers", "accelerate", "peft", "datasets", "torch", "vllm", "verl", "deepspeed"}


def test_a_text_is_found_with_values_in_its_place_and_only_whole_where_an_error_is_raised():
    text = next(
        row["text"]
        for row in TEXTS
        if row["kind"] == "raise" and row["text"].count("{}") == 1 and len(row["text"]) > 60
    ).replace("{}", "17")
    assert vocabulary.find(f"ValueError: {text}", 0) is not None
    assert vocabulary.find(f"he said: {text}", 0) is None
    assert vocabulary.find(text, 0) is not None  # a message alone, as it begins
    assert vocabulary.find("ValueError: The numb", 0) is None


def test_what_a_library_raises_is_a_finding_with_its_library_and_what_to_do_and_a_notice_is_none():
    row = text_where(kind="raise", **{"class": "padding"})
    (finding, *_) = triage.diagnose(f"Traceback (most recent call last):\nValueError: {row['text']}\n").findings
    assert finding.cause == "padding-or-mask" and finding.next and row["in"] in finding.evidence[0]
    error = "ValueError: num_generations must be greater than 0, but got 0.\n"
    assert "healthy-normal" not in [finding.cause for finding in triage.diagnose(error).findings]
    notice = text_where(**{"class": "notice"})["text"]
    assert not triage.diagnose(f"UserWarning: {notice}\n").findings


@pytest.fixture
def texts_of(script):
    return script("triage/vocabulary")


def test_the_script_finds_what_a_file_raises_asserts_and_warns(texts_of, tmp_path):
    (tmp_path / "a.py").write_text("""
def f(n, m):
    if n:
        raise ValueError(f'the group has {n} completions, ' + 'and needs two')
    assert m, 'the batch of %d rows is empty' % m
    logger.warning('the rate {} is unusually small'.format(m))
    raise KeyError(n)
""")
    sites = {site.kind: site for site in texts_of.texts(tmp_path / "a.py", "a.py")}
    assert sites["raise"].text == "the group has {} completions, and needs two" and sites["raise"].error == "ValueError"
    assert sites["assert"].text == "the batch of {} rows is empty"
    assert sites["warn"].text == "the rate {} is unusually small" and sites["warn"].where == "a.py:6"


def test_the_page_counts_what_the_installed_libraries_say(texts_of):
    page = (ROOT / "docs" / "vocabulary.md").read_text(encoding="utf-8")
    folder, version = texts_of.installed("trl")
    sites = texts_of.library("trl", folder)
    known = {row["text"] for row in TEXTS if row["in"] == f"trl {version}"}
    if version != metadata.version("trl") or f"| trl | {version} |" not in page:
        pytest.skip(f"the page is of another trl than {version}")
    assert f"| trl | {version} | {len(sites)} | {sum(site.text in known for site in sites)} (" in page
