"""The judge's process, as its caller has it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .server import FAILURES, PACE, SPREAD


@dataclass(frozen=True)
class Served:
    """A judge that is running: where to send questions, and the number of its process."""

    url: str
    pid: int

    def ledger(self) -> list[dict[str, Any]]:
        """Every request that reached it: {"id", "try", "kind", "seconds"}, in judge seconds as it planned them.

        kind  "answer", "no JSON", "error" (HTTP 500), "busy" (HTTP 429) or "hang", whose seconds are 1e9
        """
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(self.url, timeout=30) as answer:
            return json.load(answer)


@contextlib.contextmanager
def serve(
    seed: int = 0,
    scale: float = 0.02,
    *,
    pace: float = PACE,
    spread: float = SPREAD,
    failures: float = FAILURES,
    hangs: int = 1,
    room: int = 16,
) -> Iterator[Served]:
    """A judge of sums in a process of its own, on a free port of the loopback, while the `with` block lasts.

    It takes POST {"prompt", "completion"} and answers {"reward": mark(prompt, completion)}.

    seed      of its times and failures; each depends on the question's "id" and the number of the try
    scale     real seconds per judge second
    pace      judge seconds per squared character of the completion
    spread    of the time: the standard deviation of its logarithm
    failures  share of the tries that fail: 3 in 4 with HTTP 500 at once, 1 in 4 with text that is no JSON
    hangs     workers that never answer; each takes one request
    room      requests at once; the next gets HTTP 429 with a Retry-After of 2 judge seconds

    Raises: RuntimeError with its last words when it does not start.
    """
    settings = {"seed": seed, "scale": scale, "pace": pace, "spread": spread}
    settings |= {"failures": failures, "hangs": hangs, "room": room}
    code = f"import sys; sys.path[:] = {sys.path!r}; from props.slow_judge.server import main; main({settings!r})"
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    # a session of its own: an interrupt of the kernel is not for the judge, its caller ends it
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **pipes)
    with process:
        try:
            port = process.stdout.readline().strip().decode()  # type: ignore[union-attr]
            if not port:
                words = process.stderr.read().decode("utf-8", "replace")  # type: ignore[union-attr]
                raise RuntimeError(f"the judge did not start: {words.strip()[-2000:]}")
            yield Served(f"http://127.0.0.1:{port}/", process.pid)
        finally:
            process.kill()
