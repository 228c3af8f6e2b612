import ast
import json
import random
import re

import pytest
import torch
from cut import bug_cells, claims, installed, path_of

from labkit import checks, doctor, judge
from labkit.advantage import group_advantage

CELLS = json.loads(path_of("12").read_text())["cells"]
SOURCES = ["".join(c["source"]) for c in CELLS if c["cell_type"] == "code"]
PROSE = "\n".join("".join(c["source"]) for c in CELLS if c["cell_type"] == "markdown")


def functions(*names):
    """Functions of the lesson's cells, each alone."""
    space = {"random": random, "judge": judge}
    for source in SOURCES:
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name in names:
                exec(compile(ast.Module([node], []), "lesson 12", "exec"), space)
    return [space[name] for name in names]


def test_the_bug_cut_out_of_the_lesson_is_refused_and_the_solution_that_is_printed_passes():
    zero_filled = bug_cells("12")["zero_filled"]
    assert zero_filled([1.0, None, 0.5]) == [1.0, 0.0, 0.5]

    def with_bug(rewards):
        filled = zero_filled([None if r != r else r for r in rewards.tolist()])
        return group_advantage(torch.tensor(filled), 4)

    report = checks.missing_rewards(with_bug)
    assert report.passed is False and "filled with 0" in report.hint
    (source,) = [s for s in SOURCES if "SOLUTION = " in s]
    space = {"torch": torch}
    exec(re.search(r"```python\n(.*?)```", source, re.DOTALL)[1], space)
    assert checks.missing_rewards(space["my_advantage"])


def test_the_rewards_without_waiting_are_those_that_a_client_gets_from_a_real_judge():
    import asyncio

    comes, without_waiting = functions("comes", "without_waiting")
    scale, patience = 0.05, {"timeout": 10, "retries": 1}
    rows = [("91+40=", ["131", "13"][i % 2]) for i in range(40)]
    expected = [comes(3, str(i), len(c), **patience) for i, (_, c) in enumerate(rows)]
    asked = [{"id": i, "prompt": p, "completion": c} for i, (p, c) in enumerate(rows)]
    with judge.serve(3, scale, hangs=0, room=100) as served:
        settings = {"timeout": 10 * scale, "retries": 1, "backoff": 0.01}
        scores = asyncio.run(judge.score(served.url, asked, **settings))
    agree = sum(a == (r is not None) for a, r in zip(expected, scores.rewards, strict=True))
    assert agree >= 34 and 0 < scores.missing < 40
    rewards = without_waiting(0, **patience)(["91+40="] * 200, ["131"] * 200)
    dealt = without_waiting(0, **patience, dealt=True)(["91+40="] * 200, ["131", "13"] * 100)
    assert 60 < rewards.count(None) < 150
    assert abs(dealt[::2].count(None) - dealt[1::2].count(None)) < 25  # as many of the short as of the long


def test_the_ideal_is_a_bound_that_no_schedule_beats():
    (ideal,) = functions("ideal")
    space = ideal.__globals__
    from collections import Counter

    space["Counter"] = Counter
    book = [{"id": str(i % 5), "seconds": float(i)} for i in range(20)]
    assert ideal(book, workers=1, timeout=100) == sum(range(20))
    assert ideal(book, workers=100, timeout=100) == 4 + 9 + 14 + 19
    assert ideal(book, workers=1, timeout=2) == 0 + 1 + 2 * 18


def test_the_frameworks_do_what_the_lesson_says():
    trainer = installed("trl", "trainer/grpo_trainer.py")
    assert "is_async_callable(reward_func)" in trainer
    assert "unscorable_mask = torch.isnan(rewards_per_func).all(dim=1)" in trainer
    assert "advantages = torch.nan_to_num(advantages, nan=0.0)" in trainer
    assert ".nansum(dim=1)" in trainer
    import httpx
    import tenacity

    with httpx.Client() as client:
        assert client.timeout == httpx.Timeout(5.0) and client.timeout.read == 5.0
    assert "random" in (tenacity.wait_random_exponential.__doc__ or "").lower()
    assert not re.search(
        "retry.after", installed("tenacity", "wait.py").split("class wait_exception")[0], re.IGNORECASE
    )
    requests = installed("requests", "sessions.py")
    assert "timeout: _t.TimeoutType = None" in requests or "timeout=None" in requests


def test_no_judge_is_left_and_the_lesson_makes_its_claims(tmp_path):
    psutil = pytest.importorskip("psutil")
    expected, made, error = claims("12", tmp_path / "out")
    assert not error and made == expected
    left = [
        p
        for p in psutil.process_iter(["cmdline", "ppid"])
        if "labkit.judge.server" in " ".join(p.info["cmdline"] or [])
    ]
    assert not [p for p in left if p.info["ppid"] in (1, 0)]  # no orphan; other lessons may run their own


def test_what_the_lesson_needs_is_named_and_it_needs_no_gpu():
    assert doctor.NEEDED["httpx"].startswith("lesson 12") and doctor.NEEDED["tenacity"].startswith("lesson 12")
    assert "Nothing here needs a GPU" in PROSE
