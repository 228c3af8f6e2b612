"""Of what a child printed the beginning and the end are kept, to the byte."""

import os

import pytest
from children import posix

from labkit import sandbox


@posix
def test_fifty_megabytes_of_stderr_keep_head_and_tail_and_say_what_is_missing():
    def flood():
        os.write(2, b"FIRST\n")
        for _ in range(50):
            os.write(2, b"\xe2\x82\xac" * 349_525)
        os.write(2, b"LAST\n")
        yield 1

    text = sandbox.run(flood, timeout=60).outcome.stderr
    assert text.startswith("FIRST\n") and text.endswith("LAST\n")
    written = 6 + 50 * 349_525 * 3 + 5
    assert f"[labkit: {written - sandbox.evidence.HEAD - sandbox.evidence.TAIL:,} bytes left out here]" in text
    assert len(text.encode()) < 1.2 * (sandbox.evidence.HEAD + sandbox.evidence.TAIL)


@pytest.mark.parametrize(
    "over", [-1, 0, 1, 1000, sandbox.evidence.TAIL - 1, sandbox.evidence.TAIL, sandbox.evidence.TAIL + 1, 10_000_003]
)
@pytest.mark.parametrize("chunk", [7919, 65536, 1 << 21])
def test_a_stream_is_kept_to_the_byte_at_both_ends_however_it_is_cut(over, chunk):
    size = sandbox.evidence.HEAD + sandbox.evidence.TAIL + over
    written = (b"%08x" * (size // 8 + 1) % tuple(range(size // 8 + 1)))[:size]  # no two places alike
    capture = sandbox.evidence.Capture()
    for start in range(0, size, chunk):
        capture.feed(written[start : start + chunk])
    note = f"\n[labkit: {over:,} bytes left out here]\n" if over > 0 else ""
    head, tail = written[: sandbox.evidence.HEAD], written[sandbox.evidence.HEAD :][-sandbox.evidence.TAIL :]
    assert capture.text() == head.decode() + note + tail.decode()


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
