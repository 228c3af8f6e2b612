import math
import pickle

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from labkit.verdicts import VerdictError, parse, verdict


def line_of(capsys, *args):
    verdict(*args)
    return capsys.readouterr().out


def test_a_claim_that_holds_prints_one_line_that_the_course_can_read_back(capsys):
    out = line_of(capsys, "H's KL stands still", 0.00033, "<", 0.0064, "nats")
    assert out == "PASS  H's KL stands still | 0.00033 < 0.0064 nats\n"
    expected = {"result": "pass", "claim": "H's KL stands still", "seen": "0.00033 < 0.0064 nats"}
    expected |= {"measured": "0.00033", "relation": "<", "limit": "0.0064", "unit": "nats"}
    assert parse(out) == [expected]


def test_a_claim_that_does_not_hold_raises_the_same_line_and_prints_nothing(capsys):
    with pytest.raises(VerdictError) as caught:
        verdict("norms stay low", torch.tensor(182.0), "<", 10)
    assert capsys.readouterr().out == "" and caught.value.claim == "norms stay low"
    (row,) = parse(str(caught.value))
    assert row["result"] == "fail" and row["seen"] == "182 < 10" and row["limit"] == "10"


@pytest.mark.parametrize(
    ("measured", "relation", "limit", "holds"),
    [
        (1, "<", 2, True),
        (2, "<", 2, False),
        (2, "<=", 2, True),
        (2, "==", 2, True),
        (2.0000001, "==", 2, False),
        (2, ">=", 2, True),
        (2, ">", 2, False),
        (3, "in", (2, 3), True),
        (3.1, "in", (2, 3), False),
        (math.inf, ">", 1e30, True),
        ("ok", "==", "ok", True),
        ("oom", "==", "ok", False),
        (torch.tensor([2]), "==", 2, True),
    ],
)
def test_each_relation_is_what_its_sign_says(measured, relation, limit, holds):
    if holds:
        verdict("it holds", measured, relation, limit)
    else:
        with pytest.raises(VerdictError):
            verdict("it holds", measured, relation, limit)


@pytest.mark.parametrize("relation", ["<", "<=", "==", ">=", ">", "in"])
def test_nan_fulfils_no_relation(relation):
    for measured, limit in ((math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan)):
        with pytest.raises(VerdictError):
            verdict("it holds", measured, relation, (0, limit) if relation == "in" else limit)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((1, "near", 2), "relation 'near': expected one of <, <=, ==, >=, > or in"),
        ((None, "<", 2), "measured = None is a NoneType: expected a number or a word"),
        ((1, "in", (None, 2)), "limit = None"),
        (("ok", "<", "oom"), 'words can only be compared with "=="'),
    ],
)
def test_a_call_that_compares_nothing_gets_one_clear_error(args, message):
    with pytest.raises(ValueError, match=message):
        verdict("a claim", *args)


@pytest.mark.parametrize("claim", ["", "  ", "two\nlines", None])
def test_a_claim_must_be_one_line(claim):
    with pytest.raises(ValueError, match="one non-empty line"):
        verdict(claim, 1, "<", 2)


def test_numbers_that_differ_differ_on_paper_and_counts_are_whole(capsys):
    assert "0.24999 < 0.25" in line_of(capsys, "close", 0.24999, "<", 0.25)
    assert "400000 == 400000 parameters" in line_of(capsys, "all of them", 400000, "==", 400000, "parameters")


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ((1e-9, "<", 1e-6), ("1e-9", "<", "1e-6", "")),
        ((0.03, "in", (0.02, 0.06), "nats per token"), ("0.03", "in", "[0.02, 0.06]", "nats per token")),
        ((math.inf, ">", 5, "MiB"), ("inf", ">", "5", "MiB")),
        (("oom:cuda", "==", "oom:cuda"), ("oom:cuda", "==", "oom:cuda", "")),
    ],
)
def test_the_parts_of_a_line_are_read_back(capsys, args, parts):
    (row,) = parse(line_of(capsys, "a claim", *args))
    assert (row["measured"], row["relation"], row["limit"], row["unit"]) == parts


def test_a_verdict_that_failed_survives_pickling():
    error = VerdictError("norms below 10", "182 < 10")
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), back.claim, back.seen) == (VerdictError, "norms below 10", "182 < 10")
    assert str(back) == str(error) == "FAIL  norms below 10 | 182 < 10"
    assert str(VerdictError("norms below 10", "")) == "FAIL  norms below 10"


def test_in_a_notebook_a_claim_that_fails_is_one_line_and_no_traceback(capsys):
    shell = InteractiveShell()
    result = shell.run_cell("import labkit\nlabkit.verdict('one is two', 1, '==', 2)")
    assert isinstance(result.error_in_exec, VerdictError)
    assert capsys.readouterr().out.strip() == "FAIL  one is two | 1 == 2"
