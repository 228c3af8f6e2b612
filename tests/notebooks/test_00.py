import ast
import inspect
import json
import re
from functools import partial

import pytest
import torch
from cut import FOLDER, bug_cells, path_of

from labkit import advantage, checks, grads, policy, rollout
from labkit.train import train

EXISTING = {path.name[:2] for path in FOLDER.glob("[0-9][0-9]_*.ipynb")} - {"00"}
NO_FAILURE_OF_ITS_OWN = {"14"}  # it hides the others'


def sources():
    return ["".join(cell["source"]) for cell in json.loads(path_of("00").read_text())["cells"]]


def assigned(name):
    """The node that a code cell of the lesson assigns to this name."""
    cell = next(s for s in sources() if re.search(rf"^{name} = ", s, re.MULTILINE))
    return next(n.value for n in ast.parse(cell).body if isinstance(n, ast.Assign) and ast.unparse(n.targets) == name)


@pytest.fixture(scope="module")
def bugs():
    return bug_cells("00")


def test_the_thumbnails_bugs_are_bugs_to_the_checks(bugs):
    assert not checks.accumulation(bugs["overwrite"])
    assert not checks.kl_estimator(bugs["exp_kl"], role="loss")
    kept, ids = [], torch.zeros(4, 8, dtype=torch.long)
    model = policy.load("tiny", "cpu").model
    assert not checks.leaves_nothing(lambda model: bugs["keep_outputs"](model, ids, kept), model)


def test_the_copied_first_token_is_a_bug_to_its_check_and_the_own_one_is_not(bugs):
    tiny = policy.load("tiny", "cpu")
    dice = torch.Generator().manual_seed(0)

    def sampler(first_token):
        settings = {"temperature": 3.0, "generator": dice, "first_token": first_token}
        return lambda num_samples: rollout.generate(tiny, ["47+52="], num_samples=num_samples, **settings).tokens

    assert not checks.first_token(sampler(bugs["one_for_all"]))
    assert checks.first_token(sampler(rollout.each_row))


def test_the_gallery_has_one_thumbnail_for_every_lesson_that_is_written():
    lessons = [line.elts[0].value for line in assigned("GALLERY").elts]
    assert len(set(lessons)) == len(lessons)
    assert set(lessons) <= EXISTING
    assert not EXISTING - set(lessons) - NO_FAILURE_OF_ITS_OWN


def test_the_list_of_lessons_has_in_bold_what_is_written():
    listed = re.findall(r"^\| (\**)(\d\d)\** \|", "\n".join(sources()), re.MULTILINE)
    assert [number for _, number in listed] == [f"{n:02}" for n in range(1, 16)]
    bold = {number for stars, number in listed if stars}
    assert bold == EXISTING


def test_what_the_table_says_of_the_defaults_is_so():
    text, defaults = "\n".join(sources()), inspect.signature(train).parameters
    assert "clip the norm to 0.3, skip the step above 10" in text
    guard = inspect.signature(grads.guard).parameters
    assert defaults["update"].default is None
    assert (guard["max_norm"].default, guard["skip_above"].default) == (0.3, 10.0)
    assert "1 - 0.2 to 1 + 0.2" in text
    assert defaults["clip"].default == 0.2
    assert "0.04 * kl.k3" in text
    assert defaults["beta"].default == 0.04
    assert defaults["check"].default == "restore"


def test_on_a_tied_group_only_the_kl_moves_the_policy():
    """Through the trainer: rewards that are all 1 move nothing without beta, and with it pull back to the reference."""

    def moved(beta):
        tiny = policy.load("tiny", "cpu")
        before = [p.detach().clone() for p in tiny.model.parameters()]
        shift = lambda logp, ref_logp: 0.5 * (ref_logp - 0.2 - logp).square()  # a reference that is elsewhere
        steps = train(tiny, "copy", prompts=["11:99="], rounds=1, mu=1, kl=shift, beta=beta, optimizer="sgd")
        assert [step.frac_reward_zero_std for step in steps] == [1.0]
        return any(not torch.equal(a, b) for a, b in zip(before, tiny.model.parameters(), strict=True))

    assert not moved(beta=0.0)
    assert moved(beta=0.04)


LIBRARY = partial(advantage.group_advantage, num_samples=4)


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (lambda r: LIBRARY(r), "deviation"),
        (lambda r: LIBRARY(r, scale=False).view(-1, 4), "flatten"),
        (lambda r: 5 * LIBRARY(r, scale=False), "times as long"),
        (lambda r: r - r.mean(), "whole batch"),
    ],
)
def test_the_exercise_refuses_what_its_text_forbids(mistake, hint):
    assert ast.unparse(assigned("without_deviation")) == "partial(checks.group_advantage, num_samples=4, std=False)"
    report = checks.group_advantage(mistake, num_samples=4, std=False)
    assert not report
    assert hint in report.hint
