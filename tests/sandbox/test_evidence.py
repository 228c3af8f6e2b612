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
    ("end", "signature"),
    [
        ({"code": -9, "ending": {}, "reason": "stopped"}, "ok"),  # the kill came between its last word and its exit
        ({"code": -11, "ending": None, "reason": "stopped"}, "signal:11"),  # it died before the kill came
    ],
)
def test_what_we_did_to_a_child_is_told_from_what_it_died_of(end, signature):
    outcome = sandbox.evidence.judge(**end, message="", stdout="", stderr="", traceback="", seconds=1.0)
    assert outcome.signature == signature
