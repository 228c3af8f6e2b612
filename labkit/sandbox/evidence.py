"""What a child left behind, and the `Outcome` made of it. This file waits for nobody and kills nobody."""

from __future__ import annotations

import os
import signal
from typing import Any

from labkit.events import Outcome

from . import worker
from .signature import classify

# bytes kept of the beginning and of the end of stdout, and of stderr
HEAD = TAIL = 256 * 1024

_OUR_SIGNALS = {getattr(signal, "SIGKILL", None), worker.DUMP_SIGNAL}


class Capture:
    """The beginning and the end of a stream, and how much lay between. Bytes in, text out."""

    def __init__(self) -> None:
        self._head, self._tail, self._size = bytearray(), bytearray(), 0

    def feed(self, data: bytes) -> None:
        self._size += len(data)
        room = HEAD - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        if len(self._tail) > 2 * TAIL:
            del self._tail[:-TAIL]

    def text(self) -> str:
        tail = self._tail[-TAIL:]
        left_out = self._size - len(self._head) - len(tail)
        note = f"\n[labkit: {left_out:,} bytes left out here]\n".encode() if left_out else b""
        return (bytes(self._head) + note + bytes(tail)).decode("utf-8", "replace")


def judge(
    *, code: int | None, ending: dict[str, Any] | None, reason: str, message: str, **evidence: Any
) -> Outcome:
    """How a child ended.

    code      its exit code, or minus a signal's number; None when nobody knows
    ending    its own report (`worker.describe`); None when it did not live to write one
    reason    why the sandbox killed it, `timeout` or `stopped`; "" when it did not
    message   the same in a sentence
    evidence  `stdout`, `stderr`, `traceback` and `seconds` of the outcome
    """
    exit_code = code if code is not None and code >= 0 else None
    number = -code if code is not None and code < 0 else None
    evidence |= {"exit_code": exit_code, "signal": number}
    if ending is not None:
        return _reported(ending, evidence, killed=bool(reason))
    if reason and (code is None or number in _OUR_SIGNALS or os.name == "nt"):
        return Outcome(reason, message=message, **evidence)
    if code is None:
        evidence["signal"] = 9
        return Outcome("signal:9", message="the sandbox's server died and took the child along", **evidence)
    signature = classify(exit_code=exit_code, signal=number, stderr=evidence["stderr"])
    return Outcome("exit:0" if signature == "ok" else signature, **evidence)


def _reported(ending: dict[str, Any], evidence: dict[str, Any], killed: bool) -> Outcome:
    """The outcome of a child that lived to say how its function ended."""
    links = ending.get("links")
    if not links and killed:  # the kill came between its last word and its exit
        evidence |= {"exit_code": 0, "signal": None}
    by_exit = classify(exit_code=evidence["exit_code"], signal=evidence["signal"])
    if not links:
        return Outcome(by_exit, **evidence)
    kind, message = links[0]["exception"], links[0]["message"]
    signature = by_exit if kind == "SystemExit" else _cause(links, evidence["stderr"])
    code = next((link["error_code"] for link in links if link["error_code"] is not None), None)
    evidence |= {"traceback": ending["traceback"], "error_code": code}
    return Outcome(signature, exception=kind, message=message, **evidence)


def _cause(links: list[dict[str, Any]], stderr: str) -> str:
    """The signature of exceptions raised from each other: the first that says more than a type's name."""
    signatures = [classify(**link, stderr=stderr) for link in links]
    return next((s for s in signatures if not s.startswith("exception:")), signatures[0])


def where(dump: str) -> str:
    """faulthandler's text without the sandbox's own frames and the list of extension modules."""
    blocks = []
    for block in dump.strip().split("\n\n"):
        lines = block.splitlines()
        ours = next((n for n, line in enumerate(lines) if f'"{worker.__file__}"' in line), len(lines))
        if not block.startswith("Extension modules:"):
            blocks.append("\n".join(lines[:ours]))
    return "\n\n".join(blocks)
