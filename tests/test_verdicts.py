import pytest

import labkit
from labkit.verdicts import VerdictError, parse, verdict


def test_a_claim_that_holds_prints_one_line_that_the_course_can_read_back(capsys):
    verdict("crash in round 2", True, "RuntimeError  in\ntorch.multinomial")
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert parse(out) == [
        {"result": "pass", "claim": "crash in round 2", "seen": "RuntimeError in torch.multinomial"}
    ]


def test_a_claim_that_does_not_hold_raises_and_prints_nothing(capsys):
    with pytest.raises(VerdictError) as caught:
        verdict("norms below 10", False, "norm 182")
    assert capsys.readouterr().out == "" and caught.value.claim == "norms below 10"
    assert parse(str(caught.value)) == [{"result": "fail", "claim": "norms below 10", "seen": "norm 182"}]


def test_an_unhappy_outcome_or_report_counts_as_false():
    with pytest.raises(VerdictError):
        verdict("it ran", labkit.Outcome("timeout"))


@pytest.mark.parametrize("claim", ["", "  ", "two\nlines", None])
def test_a_claim_must_be_one_line(claim):
    with pytest.raises(ValueError, match="one non-empty line"):
        verdict(claim, True)
