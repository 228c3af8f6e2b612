"""A check never raises on a wrong answer, never disturbs its surroundings, and says things the same way."""

import functools
import json
import pickle
import random
import re

import numpy
import pytest
import torch

from labkit import checks
from labkit.checks.report import PASS, Report, caution, fail, inconclusive, judged
from labkit.grpo import kl

MODEL = torch.nn.Linear(2, 2)
CHECKS = {
    "accumulation": checks.accumulation,
    "accumulated_step": checks.accumulated_step,
    "kl_estimator": checks.kl_estimator,
    "kl_loss": lambda f: checks.kl_estimator(f, role="loss"),
    "first_token": checks.first_token,
    "group_advantage": checks.group_advantage,
    "grpo_step": checks.grpo_step,
    "grpo_step_update": lambda f: checks.grpo_step(update=f),
    "guard": checks.guard,
    "leaves_nothing": lambda f: checks.leaves_nothing(f, MODEL),
    "missing_rewards": checks.missing_rewards,
    "rotary": checks.rotary,
    "rows_split": checks.rows_split,
    "shared_loss": checks.shared_loss,
    "temperature": checks.temperature,
}
every_check = pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
NO_FUNCTION = {"token_ids", "Report", "StepReport"}  # a tokenizer, a model and ids in


def raises(error):
    def function(*args, **kwargs):
        raise error

    return function


STRANGE = {
    "nothing": lambda *a, **k: None,
    "text": lambda *a, **k: "tokens",
    "nested_dict": lambda *a, **k: {"sequences": {"tokens": None}},
    "nan": lambda *a, **k: torch.full((16, 4), torch.nan),
    "empty_tensor": lambda *a, **k: torch.zeros(0),
    "complex": lambda *a, **k: torch.zeros(16, 4, dtype=torch.complex64),
    "generator": lambda *a, **k: (x for x in range(3)),
    "clears_its_arguments": lambda *a, **k: [x.clear() for x in a if isinstance(x, (list, dict))],
    "raises": raises(RuntimeError("CUDA error: device-side assert triggered")),
    "exits": raises(SystemExit(3)),
    "unwritten": raises(NotImplementedError("your turn")),
    "wrong_signature": lambda a, b, c, d, e, f: None,
}


def test_every_check_is_tried():
    assert set(checks.__all__) - NO_FUNCTION <= set(CHECKS)


@pytest.mark.filterwarnings("ignore:Casting complex values")
@every_check
def test_whatever_a_wrong_function_does_the_report_is_false_with_evidence_and_a_hint(check):
    for name, function in STRANGE.items():
        report = check(function)
        assert isinstance(report, Report), name
        assert not report, name
        assert report.seen and report.hint, name


@every_check
def test_what_the_function_raised_is_the_evidence(check):
    report = check(STRANGE["raises"])
    assert report.seen["exception"] == "RuntimeError: CUDA error: device-side assert triggered"
    assert re.fullmatch(r"test_checks_report\.py:\d+ in function", report.seen["where"])
    assert "in function" in report.traceback
    assert "not written yet" in check(STRANGE["unwritten"]).hint
    assert "signature" in check(STRANGE["wrong_signature"]).hint


def helper(x):
    return x @ torch.ones(3)  # torch raises


def calls_a_helper(*args):
    return helper(torch.ones(2))


def raises_anew(*args):
    try:
        helper(torch.ones(2))
    except RuntimeError as error:
        raise ValueError("in my own words") from error


def in_a_cell(source, space):
    """A function as a notebook has it."""
    exec(compile(source, "/tmp/ipykernel_7/1234.py", "exec"), space)
    return space["mine"]


@pytest.mark.parametrize(
    ("function", "where"),
    [
        (functools.partial(calls_a_helper, 1), r"test_checks_report\.py:\d+ in helper"),
        (calls_a_helper, r"test_checks_report\.py:\d+ in helper"),
        (raises_anew, r"test_checks_report\.py:\d+ in raises_anew"),
        (lambda *a: json.loads("{"), r"test_checks_report\.py:\d+ in <lambda>"),
        (lambda *a: kl.k2(torch.ones(2), 3), r"test_checks_report\.py:\d+ in <lambda>"),
        (in_a_cell("def mine(*a):\n    return a[0].no_such_thing\n", {}), r"cell:2 in mine"),
        (lambda: None, "the call itself"),
    ],
)
def test_the_deepest_line_of_the_callers_own_code_is_named(function, where):
    report = checks.accumulation(function)
    assert re.fullmatch(where, report.seen["where"]), report
    assert ("signature" in report.hint) == (where == "the call itself"), report


def test_of_a_function_of_labkits_own_its_own_line_is_named():
    report = checks.kl_estimator(functools.partial(kl.k3_clamped, limit=-1))
    assert re.fullmatch(r"kl\.py:\d+ in _check_limit", report.seen["where"])


@every_check
def test_what_is_no_function(check):
    for nobody in (None, ...):  # an exercise that nobody tried survives a run of all cells
        report = check(nobody)
        assert not report and "no function yet" in report.hint
    with pytest.raises(TypeError, match="expected a function, got int"):
        check(3)
    with pytest.raises(KeyboardInterrupt):
        check(raises(KeyboardInterrupt()))


def noisy(*args, **kwargs):
    """A function that uses up and reseeds every global random generator."""
    torch.manual_seed(99), torch.rand(7), random.seed(5), numpy.random.seed(5)
    return torch.randint(0, 9, (16, 4))


@every_check
def test_the_global_random_state_is_left_untouched(check):
    torch.manual_seed(1), random.seed(1), numpy.random.seed(1)
    expected = torch.rand(3).tolist(), random.random(), numpy.random.rand()
    torch.manual_seed(1), random.seed(1), numpy.random.seed(1)
    check(noisy)
    assert (torch.rand(3).tolist(), random.random(), numpy.random.rand()) == expected


RIGHT = {
    "kl_loss": lambda: checks.kl_estimator(lambda a, b: (a - b).square() / 2, role="loss"),
    "first_token": lambda: checks.first_token(lambda n: torch.randint(0, 9, (n, 4))),
    "accumulated_step": lambda: checks.accumulated_step(
        lambda model, optimizer, batches: (
            optimizer.zero_grad(),
            [model(**b).loss.backward() for b in batches],
            optimizer.step(),
        )
    ),
}


@pytest.mark.parametrize("run", RIGHT.values(), ids=RIGHT)
def test_a_check_is_the_same_twice_and_inside_no_grad_inference_mode_and_another_default_dtype(run):
    first = run()
    assert first, first
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            second = run()
        with torch.inference_mode():
            third = run()
    finally:
        torch.set_default_dtype(torch.float32)
    assert repr(first) == repr(second) == repr(third)
    assert first.seen == third.seen


def test_a_report_has_the_same_three_lines_in_every_state():
    good = Report("check", "claim", True, {"error": 0.0, "steps": 3})
    bad = Report("check", "claim", False, {"error": 0.51234, "steps": 3, "names": ["a\nb"]}, "Likely x.")
    careful = Report("check", "claim", True, {"error": 0.5}, caution="But.")
    unsure = Report("check", "claim", None, {}, "Ask for more.")
    assert repr(good) == "PASS  check: claim\nseen  error 0, steps 3\nhint  none"
    assert repr(bad) == "FAIL  check: claim\nseen  error 0.512, steps 3, names [a b]\nhint  Likely x."
    assert repr(careful) == "PASS  check: claim\nseen  error 0.5\nhint  none\ncaution  But."
    assert repr(unsure) == "INCONCLUSIVE  check: claim\nseen  nothing\nhint  Ask for more."
    assert [bool(report) for report in (good, bad, careful, unsure)] == [True, False, True, False]
    assert pickle.loads(pickle.dumps(unsure)) == unsure


def test_the_kind_of_a_verdict_makes_the_state():
    for verdict, expected in (
        (PASS, (True, "", "")),
        (caution("mind"), (True, "", "mind")),
        (inconclusive("more"), (None, "more", "")),
        (fail("wrong"), (False, "wrong", "")),
    ):
        report = judged("check", "claim", len, lambda evidence, verdict=verdict: verdict)
        assert (report.passed, report.hint, report.caution) == expected
