"""The name of a death is read from the exception, the exit code, the signal and stderr."""

import pytest
from children import check_fault, posix
from cuda_texts import ASSERTS, TRIGGERED

from labkit import sandbox
from labkit.events import Outcome


@pytest.mark.parametrize("name", ASSERTS)
def test_the_kind_of_a_device_assert_is_read_from_the_runtimes_text(name):
    text, kind = ASSERTS[name]
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
    assert sandbox.is_multinomial_assert(outcome) is (kind == "multinomial")
    assert sandbox.is_index_assert(outcome) is (kind == "index")


ENDS = [
    ({"exception": "RuntimeError", "message": TRIGGERED}, "device-assert:other"),
    ({"exception": "ValueError", "message": "x", "stderr": ASSERTS["index, gather"][0]}, "exception:ValueError"),
    ({"exception": "OutOfMemoryError", "bases": ["RuntimeError"], "message": "CUDA out of memory."}, "oom"),
    ({"exception": "Mine", "bases": ["OutOfMemoryError", "RuntimeError"]}, "oom"),
    ({"exception": "RuntimeError", "message": "CUDA out of memory. Tried to allocate 2.00 GiB"}, "oom"),
    ({"exception": "AcceleratorError", "message": "CUDA error: out of memory", "error_code": 2}, "oom"),
    ({"exception": "MemoryError"}, "oom"),
    ({"exception": "OSError", "message": "[Errno 12] Cannot allocate memory"}, "oom"),
    ({"exit_code": None, "signal": 6, "stderr": "what():  std::bad_alloc\n"}, "oom"),
    # glibc's own assert is no device assert
    ({"exit_code": None, "signal": 6, "stderr": "a.out: x.c:5: main: Assertion `x > 0' failed.\n"}, "signal:6"),
]


@pytest.mark.parametrize(("end", "signature"), ENDS)
def test_an_end_has_one_signature(end, signature):
    assert sandbox.evidence.classify(**end) == signature


def torchs_own(call):
    import torch

    calls = {
        "nan": lambda: torch.multinomial(torch.tensor([float("nan"), 1.0]), 1),
        "nan, with replacement": lambda: torch.multinomial(torch.tensor([float("nan"), 1.0]), 2, True),
        "a row of zeros": lambda: torch.multinomial(torch.zeros(2), 1),
        "embedding": lambda: torch.nn.Embedding(4, 2)(torch.tensor([9])),
        "indexing": lambda: torch.ones(3)[torch.tensor([7])],
        "a list's": lambda: [][3],
        "1 PiB": lambda: torch.empty(1 << 50),
    }
    calls[call]()


@pytest.mark.parametrize(
    ("call", "signature", "family"),
    [
        ("nan", "exception:RuntimeError", "multinomial"),
        ("nan, with replacement", "exception:RuntimeError", "multinomial"),
        ("a row of zeros", "exception:RuntimeError", ""),
        ("embedding", "exception:IndexError", "index"),
        ("indexing", "exception:IndexError", "index"),
        ("a list's", "exception:IndexError", ""),
        ("1 PiB", "oom", ""),
    ],
)
def test_what_torch_raises_on_the_cpu_is_of_the_same_family(call, signature, family):
    outcome = sandbox.run(torchs_own, call).outcome
    assert outcome.signature == signature
    assert sandbox.is_multinomial_assert(outcome) is (family == "multinomial")
    assert sandbox.is_index_assert(outcome) is (family == "index")


@posix
def test_the_error_code_and_the_cause_come_through_an_exception_raised_from_it():
    outcome = check_fault("fake index assert")
    assert (outcome.exception, outcome.message, outcome.error_code) == ("RuntimeError", "round 2 failed", 710)
    assert ASSERTS["index, embedding"][0] in outcome.stderr and "AcceleratorError" in outcome.traceback
