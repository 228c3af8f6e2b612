"""What lesson 07 leans on and does not show: which variable torch reads, and that its recording fragments a card."""

import importlib.util
import os
import random
import sys
from pathlib import Path

import pytest
from cut import FOLDER, installed
from props.card import OutOfMemory

from labkit.memory import explain

sys.path.append(str(FOLDER))  # as `labkit.warm()` does

OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
ON = "expandable_segments:True"
GIB = 2**30


CANARY = "max_split_size_mb:1"  # every build refuses it, if it reads it: at least 20 is allowed


def first_use(device):
    """Make torch read its allocator variables. Without CUDA there is the parser alone (torch 2.9 and on)."""
    import torch

    if device != "cpu" and torch.cuda.is_available():
        torch.ones(1, device="cuda")
    else:
        torch._C._accelerator_setAllocatorSettings("")


# Which variable torch reads ------------------------------------------------------------------------------------------


def test_a_variable_set_after_the_first_use_is_not_read_and_one_set_before_is():
    from labkit import sandbox

    def process(early):
        if early:
            os.environ[OLD] = CANARY
        first_use("cpu")
        os.environ[OLD] = CANARY
        first_use("cpu")
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


def test_the_state_made_first_is_the_same_list_with_the_state_in_another_place():
    from props import lesson_07 as props

    calls = small_program(random.Random(0))
    moved = props.state_first(calls)
    assert sorted(map(repr, moved)) == sorted(map(repr, calls)) and moved[0] == ("malloc", 2, 200 << 20, "optimizer")
    assert [call for call in moved if call[1] != 2] == [call for call in calls if call[1] != 2]
    assert props.smallest(moved) < props.smallest(calls) - 0.5
    assert [at for at, call in enumerate(props.emptied(calls, "score", [2])) if call == ("empty_cache",)] == [10]


def test_a_round_begins_with_the_weights_then_with_three_times_as_much_and_a_leak_is_above():
    from props import lesson_07 as props

    calls = [("malloc", 0, GIB, "parameter"), ("mark", "round 1, score"), ("malloc", 1, 2 * GIB, "optimizer")]
    calls += [("mark", "round 2, score"), ("malloc", 2, GIB, "logits"), ("mark", "round 3, score")]
    assert props.at_round_starts(calls, 5.0) == [1.0, 3.0, 4.0]
    assert props.at_round_starts(calls, 3.5) == [1.0, 3.0]  # as far as it comes


def test_the_picture_of_a_refusal_has_the_emptied_cache_and_the_request_above_the_card():
    from props import lesson_07 as props

    calls = [("mark", "round 1, score"), ("malloc", 0, GIB, "logits"), ("malloc", 1, GIB, "logits")]
    calls += [("free", 0), ("malloc", 2, 2 * GIB, "logits")]
    died = props.start({}, calls=calls, card_gib=2.5, device="cpu")
    figure = props.draw_runs({"one": died, "again": died}, 2.5, "a title")
    words = [text.get_text() for text in figure.axes[0].texts]
    assert "refused: 2.00 more" in words and "cache emptied: 2.00 to 1.00" in words


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
