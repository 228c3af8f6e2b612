"""Of what a child printed the beginning and the end are kept, to the byte."""

import os

import pytest
from children import posix

from labkit import sandbox
from labkit.sandbox.evidence import HEAD, TAIL


@posix
@pytest.mark.parametrize("over", [0, 1, 1000, HEAD + TAIL + 1, 10_000_003])
def test_a_stream_is_kept_to_the_byte_at_both_ends_and_says_what_is_missing(over):
    def numbers(size):
        return (b"%08x" * (size // 8 + 1) % tuple(range(size // 8 + 1)))[:size]  # no two places alike

    def flood(size):
        written = memoryview(numbers(size))
        while written:
            written = written[os.write(2, written) :]

    size = HEAD + TAIL + over
    written = numbers(size).decode()
    note = f"\n[labkit: {over:,} bytes left out here]\n" if over else ""
    text = sandbox.run(flood, size, timeout=60).outcome.stderr
    assert text == written[:HEAD] + note + written[-TAIL:]


@pytest.mark.parametrize(
    ("end", "signature", "exit_code", "number"),
    [
        ({"code": 0, "ending": {}}, "ok", 0, None),
        ({"code": -9, "ending": {}, "reason": "stopped"}, "ok", 0, None),
        ({"code": -9, "reason": "stopped"}, "stopped", None, 9),
        ({"code": -9, "reason": "timeout"}, "timeout", None, 9),
        ({"code": None, "reason": "stopped"}, "stopped", None, None),
        ({"code": -9}, "signal:9", None, 9),
        ({"code": None}, "signal:9", None, 9),
        ({"code": 0}, "exit:0", 0, None),
        ({"code": 3}, "exit:3", 3, None),
        ({"code": -11, "reason": "stopped"}, "signal:11", None, 11),
    ],
)
def test_what_we_did_to_a_child_is_told_from_what_it_died_of(end, signature, exit_code, number):
    rest = {"ending": None, "reason": "", "message": "", "stdout": "", "stderr": "", "traceback": ""}
    outcome = sandbox.evidence.judge(**{**rest, **end}, seconds=1.0)
    assert (outcome.signature, outcome.exit_code, outcome.signal) == (signature, exit_code, number)
