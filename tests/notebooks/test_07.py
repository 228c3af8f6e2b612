"""What lesson 07 leans on and does not show: which variable torch reads, and that its recording fragments a card."""

import importlib.util
import json
import os
import random
import sys
from pathlib import Path

import pytest
from cut import FOLDER, installed, path_of

from labkit.memory import explain
from labkit.memory.allocator import OutOfMemory

sys.path.append(str(FOLDER))  # as `labkit.warm()` does

OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
ON = "expandable_segments:True"
CANARY = "max_split_size_mb:1"  # a reader of the variable must refuse it: at least 20 is allowed
GIB = 2**30


def cell(tag):
    """What the lesson's cell with this tag defines, of its functions and plain values."""
    (source,) = [
        "".join(c["source"])
        for c in json.loads(path_of("07").read_text())["cells"]
        if tag in c["metadata"].get("tags", [])
    ]
    space = {}
    exec(
        compile(source.split("\n\n\n")[-2] if tag == "bug" else source.split("\n\n\nfix")[0], "lesson 07", "exec"),
        space,
    )
    return space


def test_the_fix_sets_what_every_torch_reads_and_the_bug_what_the_older_ones_do_not():
    bug, fix = cell("bug")["environment"], cell("fix")["environment"]
    assert explain(None, bug({}), "2.6.0").honoured is None
    for version in ("2.6.0", "2.8.0", "2.9.1", "2.10.0", "2.13.0"):
        environment = fix({"PATH": "/bin", OLD: "max_split_size_mb:256"})
        assert explain(None, environment, version).honoured == OLD
        assert environment == {"PATH": "/bin", OLD: ON}


# Which variable torch reads ------------------------------------------------------------------------------------------


def test_a_variable_set_after_the_first_use_is_not_read_and_one_set_before_is():
    from labkit import sandbox

    def process(early):
        import torch

        if early:
            os.environ[OLD] = CANARY
        torch._C._accelerator_setAllocatorSettings("")
        os.environ[OLD] = CANARY
        torch._C._accelerator_setAllocatorSettings("")
        yield os.environ[OLD]

    late = sandbox.run(process, False)
    assert late.outcome and late.events == [CANARY]
    assert "max_split_size_mb" in sandbox.run(process, True).outcome.message


def test_torch_2_9_does_not_read_the_new_name_and_2_10_does():
    assert explain(None, {NEW: ON}, "2.9.1").honoured is None
    assert explain(None, {NEW: ON}, "2.10.0").honoured == NEW


def test_the_installed_header_reads_the_old_name_first_and_the_new_one_only_without_it():
    header = installed("torch", "include/c10/cuda/CUDAAllocatorConfig.h")
    reads = header.split("static CUDAAllocatorConfig& instance()")[1].split("parseArgs")[0]
    assert reads.index(f'get_env("{OLD}")') < reads.index("!env.has_value()") < reads.index(f'get_env("{NEW}")')


def test_launchers_hand_on_the_environment():
    handler = "distributed/elastic/multiprocessing/subprocess_handler/subprocess_handler.py"
    assert "env_vars = os.environ.copy()" in installed("torch", handler)
    assert installed("accelerate", "utils/launch.py").count("current_env = os.environ.copy()") >= 2


@pytest.mark.parametrize("package", ["transformers", "trl", "accelerate"])
def test_no_file_of_the_trainers_sets_it(package):
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    texts = {file: file.read_bytes() for file in Path(found.origin).parent.rglob("*.py")}
    assert not [file for file, text in texts.items() if b"ALLOC_CONF" in text or b"expandable_segments" in text]


# The props -----------------------------------------------------------------------------------------------------------


def small_program(dice):
    """A recording in small: two tensors of a scoring, freed, state that stays, and a scoring that is longer."""
    first = dice.randrange(900, 1000) << 20
    calls = [("mark", "round 1, score"), ("malloc", 0, first, "logits"), ("malloc", 1, first, "logits")]
    calls += [("free", 0), ("free", 1), ("mark", "round 1, learn"), ("mark", "round 1, update")]
    calls += [("malloc", 2, 200 << 20, "optimizer"), ("mark", "round 1, over"), ("mark", "round 2, score")]
    calls += [("malloc", 3, first, "logits"), ("malloc", 4, first, "logits"), ("free", 3), ("free", 4)]
    return [*calls, ("mark", "round 2, learn")]


def test_state_that_moves_into_a_freed_segment_makes_the_next_scoring_need_a_larger_card():
    from props import lesson_07 as props

    for seed in range(5):
        calls = small_program(random.Random(seed))
        default, expandable = props.smallest(calls), props.smallest(calls, ON)
        assert default > expandable + 0.5
        assert abs(props.smallest(props.emptied(calls, "over")) - default) < 0.03
        assert props.smallest(props.emptied(calls, "learn")) < default - 0.5
        assert props.smallest(calls, "max_split_size_mb:512") < default - 0.5


def test_a_process_says_what_it_read_what_was_refused_and_who_is_in_the_way():
    from props import lesson_07 as props

    calls = small_program(random.Random(0))
    died = props.start({}, calls=calls, card_gib=2.5, device="cpu")
    assert died.outcome.signature == "oom" and props.end_of(died) == "out of memory in round 2, score"
    assert props.said(died, "asked") == calls[props.said(died, "refused")][2]
    assert props.tenants(died) == "optimizer since round 1, update"
    lived = props.start({OLD: ON}, calls=calls, card_gib=2.5, device="cpu")
    assert props.said(lived, "read") == ON and props.end_of(lived) == "all four rounds"
    assert props.end_of(props.start({OLD: CANARY}, calls=calls, card_gib=2.5, device="cpu")).startswith(
        "does not start"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        lambda environment, starts: OLD,
        lambda environment, starts: next((n for n in (OLD, NEW) if not starts({**environment, n: CANARY})), None),
        lambda environment, starts: next((n for n in (OLD, NEW) if n in environment), None),
        lambda environment, starts: next((n for n in (NEW, OLD) if not starts({n: CANARY})), None),
    ],
)
def test_the_judge_of_the_probe_refuses_what_only_looks_right(wrong):
    from props import lesson_07 as props

    report = props.probe("cpu")(wrong)
    assert not report and "expected" in report.hint


def test_a_card_that_refuses_nothing_gives_no_log():
    from props import lesson_07 as props

    calls = small_program(random.Random(0))
    assert props.refusal_of(calls, 8.0) is None and isinstance(props.refusal_of(calls, 2.5), OutOfMemory)
    with pytest.raises(ValueError, match="a log of its death was expected"):
        props.log_of(calls, 8.0, "", "runs")
