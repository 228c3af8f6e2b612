"""The name of a death is read from the exception, the exit code, the signal and stderr."""

import pytest
from children import fake_accelerator_error, posix
from cuda_texts import (
    INDEX_EMBEDDING,
    INDEX_GATHER,
    INDEX_SCATTER,
    LOSS_TARGET,
    MULTINOMIAL_LINUX,
    MULTINOMIAL_REPLACEMENT,
    MULTINOMIAL_WINDOWS,
    TRIGGERED,
    ZERO_ROW,
)

from labkit import sandbox
from labkit.events import Outcome


@pytest.mark.parametrize(
    ("text", "kind", "multinomial", "index"),
    [
        (MULTINOMIAL_LINUX, "multinomial", True, False),
        (MULTINOMIAL_WINDOWS, "multinomial", True, False),
        (MULTINOMIAL_WINDOWS.replace("\n", "\r\n") + "\r", "multinomial", True, False),
        ("TensorCompare.cu:110: Assertion input[0] != 0 failed", "multinomial", True, False),
        (MULTINOMIAL_REPLACEMENT, "multinomial", True, False),
        (INDEX_EMBEDDING, "index", False, True),
        (INDEX_GATHER, "index", False, True),
        (INDEX_SCATTER, "index", False, True),
        (LOSS_TARGET, "other", False, False),
        (ZERO_ROW, "other", False, False),
    ],
)
def test_the_kind_of_a_device_assert_is_read_from_the_runtimes_text(text, kind, multinomial, index):
    noise = f"a warning\n{text}\n{text}\nterminate called\n"
    for end in (
        {"exception": "RuntimeError", "message": TRIGGERED, "exit_code": 1},
        {"exception": "AcceleratorError", "bases": ["RuntimeError"], "message": "?", "error_code": 710},
        {"exception": "RuntimeError", "message": "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling"},
        {"exit_code": None, "signal": 6},
        {"exit_code": 3},
    ):
        assert sandbox.evidence.classify(**end, stderr=noise) == f"device-assert:{kind}"
    outcome = Outcome("device-assert:" + kind, stderr=noise)
    assert sandbox.is_multinomial_assert(outcome) is multinomial
    assert sandbox.is_index_assert(outcome) is index


@pytest.mark.parametrize(
    ("end", "signature"),
    [
        ({}, "ok"),
        ({"exception": "RuntimeError", "message": TRIGGERED}, "device-assert:other"),
        ({"exception": "ValueError", "message": "x", "stderr": MULTINOMIAL_LINUX}, "exception:ValueError"),
        ({"exception": "OutOfMemoryError", "bases": ["RuntimeError"], "message": "CUDA out of memory."}, "oom"),
        ({"exception": "Mine", "bases": ["OutOfMemoryError", "RuntimeError"]}, "oom"),
        ({"exception": "RuntimeError", "message": "CUDA out of memory. Tried to allocate 2.00 GiB"}, "oom"),
        ({"exception": "AcceleratorError", "message": "CUDA error: out of memory", "error_code": 2}, "oom"),
        ({"exception": "MemoryError"}, "oom"),
        ({"exception": "OSError", "message": "[Errno 12] Cannot allocate memory"}, "oom"),
        ({"exit_code": None, "signal": 6, "stderr": "what():  std::bad_alloc\n"}, "oom"),
        ({"exit_code": None, "signal": 9}, "signal:9"),
        ({"exit_code": 5}, "exit:5"),
        (  # glibc's own assert is no device assert
            {"exit_code": None, "signal": 6, "stderr": "a.out: x.c:5: main: Assertion `x > 0' failed.\n"},
            "signal:6",
        ),
    ],
)
def test_an_end_has_one_signature(end, signature):
    assert sandbox.evidence.classify(**end) == signature


def test_cpu_asserts_are_exceptions_of_the_same_family():
    def sample(values, replacement=False):
        import torch

        yield torch.multinomial(torch.tensor(values), 1 + replacement, replacement).tolist()

    def embed():
        import torch

        torch.nn.Embedding(4, 2)(torch.tensor([9]))

    def look_up():
        import torch

        torch.ones(3)[torch.tensor([7])]

    for replacement in (False, True):
        outcome = sandbox.run(sample, [float("nan"), 1.0], replacement).outcome
        assert outcome.signature == "exception:RuntimeError" and sandbox.is_multinomial_assert(outcome)
    zero = sandbox.run(sample, [0.0, 0.0]).outcome
    assert zero.signature == "exception:RuntimeError" and not sandbox.is_multinomial_assert(zero)
    for function in (embed, look_up):
        outcome = sandbox.run(function).outcome
        assert outcome.signature == "exception:IndexError" and sandbox.is_index_assert(outcome)
        assert not sandbox.is_multinomial_assert(outcome)
    assert not sandbox.is_index_assert(sandbox.run(lambda: [][3]).outcome)


def test_torchs_own_allocation_failure_is_oom():
    def ask():
        import torch

        torch.empty(1 << 50)

    outcome = sandbox.run(ask).outcome
    assert (outcome.signature, outcome.exception) == ("oom", "RuntimeError")


@posix
def test_the_error_code_and_the_cause_come_through_an_exception_raised_from_it():
    outcome = sandbox.run(fake_accelerator_error, MULTINOMIAL_LINUX, TRIGGERED).outcome
    assert outcome.signature == "device-assert:multinomial"
    assert (outcome.exception, outcome.message, outcome.error_code) == ("RuntimeError", "round 2 failed", 710)
    assert MULTINOMIAL_LINUX in outcome.stderr and "AcceleratorError" in outcome.traceback


def test_an_oom_that_was_handled_does_not_name_the_failure_after_it():
    def handle():
        try:
            raise MemoryError
        except MemoryError:
            raise ValueError("later") from None

    assert sandbox.run(handle).outcome.signature == "exception:ValueError"
