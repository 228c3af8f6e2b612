import pickle

import pytest

import labkit
from labkit.verdicts import VerdictError, parse, skip, verdict


def test_a_claim_that_holds_prints_one_line_that_the_course_can_read_back(capsys):
    verdict("crash in round 2", True, "RuntimeError  in\ntorch.multinomial")
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert parse(out) == [{"result": "pass", "claim": "crash in round 2", "seen": "RuntimeError in torch.multinomial"}]


def test_a_claim_that_does_not_hold_raises_and_prints_nothing(capsys):
    with pytest.raises(VerdictError) as caught:
        verdict("norms below 10", False, "norm 182")
    assert capsys.readouterr().out == "" and caught.value.claim == "norms below 10"
    assert parse(str(caught.value)) == [{"result": "fail", "claim": "norms below 10", "seen": "norm 182"}]


def test_what_cannot_be_tried_is_skipped_with_a_reason(capsys):
    skip(["the guard holds", "it reports"], "TRL is not installed")
    found = parse(capsys.readouterr().out)
    assert [v["result"] for v in found] == ["skip", "skip"]
    assert found[1] == {"result": "skip", "claim": "it reports", "seen": "TRL is not installed"}


def test_an_unhappy_outcome_or_report_counts_as_false():
    with pytest.raises(VerdictError):
        verdict("it ran", labkit.Outcome("timeout"))


@pytest.mark.parametrize("claim", ["", "  ", "two\nlines", None])
def test_a_claim_must_be_one_line(claim):
    with pytest.raises(ValueError, match="one non-empty line"):
        verdict(claim, True)


@pytest.mark.parametrize("seen", ["norm 182", ""])
def test_a_verdict_that_failed_survives_pickling(seen):
    error = VerdictError("norms below 10", seen)
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.claim, back.seen) == (VerdictError, str(error), "norms below 10", seen)
    assert str(back) == "FAIL  norms below 10 | norm 182".removesuffix("" if seen else " | norm 182")
