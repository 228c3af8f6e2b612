"""A judge with the habits of real ones, on the standard library's HTTP server. This runs in a process of its own.

It grades sums. A long completion takes it longer, as the square of the length; one answer in five is an error or no
JSON; more requests at once than it has room for get 429 and a Retry-After; one of its workers hangs with the first
request it gets. It does not notice that a client has gone: it works on, for nobody. All its times are judge seconds of
`scale` real ones.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from labkit.grpo import task

PACE, SPREAD, FAILURES = 1.25, 0.3, 0.2  # see `serve`
QUICK = 0.3  # judge seconds until it says that it cannot


def mark(prompt: str, completion: str) -> float:
    """The share of digits that stand where they should, 0..1: `91+40=` is 131, so 131 gets 1, 121 gets 2/3, 13 too."""
    answer = task.of_prompt(prompt).answer(prompt)
    right = sum(a == b for a, b in zip(answer, completion, strict=False))
    return right / max(len(answer), len(completion))


def fate(
    seed: int,
    name: str,
    number: int,
    length: int,
    pace: float = PACE,
    spread: float = SPREAD,
    failures: float = FAILURES,
) -> tuple[str, float]:
    """What becomes of a try: ("answer", "error" or "no JSON", after how many judge seconds).

    It depends on nothing but the judge's seed, the question's `name` (its "id" as a text), the `number` of the try,
    from 1, and the completion's `length`. The settings are those of `serve`.
    """
    dice = random.Random(f"{seed} {name} {number}")
    seconds, luck = pace * length**2 * math.exp(dice.gauss(0, spread)), dice.random()
    if luck < 0.75 * failures:
        return "error", QUICK
    return "no JSON" if luck < failures else "answer", seconds


class Judge(ThreadingHTTPServer):
    """Serves until its parent is gone. See `process.serve` for the settings."""

    request_queue_size = 256

    def __init__(
        self,
        seed: int,
        scale: float,
        pace: float,
        spread: float,
        failures: float,
        hangs: int,
        room: int,
    ):
        super().__init__(("127.0.0.1", 0), Handler)
        self.seed, self.scale, self.pace, self.spread = seed, scale, pace, spread
        self.failures, self.hangs, self.room = failures, hangs, room
        self.parent, self.lock = os.getppid(), threading.Lock()
        self.busy, self.seen, self.ledger = 0, Counter[str](), list[dict[str, Any]]()

    def service_actions(self) -> None:  # several times a second
        if os.getppid() != self.parent:
            os._exit(0)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has hung up is no error."""

    def take(self, question: dict[str, Any]) -> dict[str, Any]:
        """What becomes of a request: its `fate`, but for a full house and the worker that hangs."""
        name = str(question.get("id", f"{question['prompt']}{question['completion']}"))
        with self.lock:
            self.seen[name] += 1
            settings = len(question["completion"]), self.pace, self.spread, self.failures
            kind, seconds = fate(self.seed, name, self.seen[name], *settings)
            if self.busy >= self.room:
                kind, seconds = "busy", QUICK / 10
            elif self.hangs:
                kind, seconds, self.hangs = "hang", math.inf, self.hangs - 1
            row = {"id": name, "try": self.seen[name], "kind": kind, "seconds": seconds}
            self.ledger.append(row)
            self.busy += kind != "busy"
        return row

    def leave(self) -> None:
        with self.lock:
            self.busy -= 1


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Judge
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:  # noqa: N802
        """What the judge has on its books."""
        with self.server.lock:
            told = [row | {"seconds": min(row["seconds"], 1e9)} for row in self.server.ledger]
        self._say(200, json.dumps(told))

    def do_POST(self) -> None:  # noqa: N802
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        row = self.server.take(question)
        if row["kind"] == "hang":
            threading.Event().wait()
        time.sleep(row["seconds"] * self.server.scale)
        if row["kind"] == "busy":
            return self._say(
                429, "too many requests", {"Retry-After": f"{2 * self.server.scale:.3f}"}
            )
        self.server.leave()
        if row["kind"] == "error":
            return self._say(500, "the judge is out of memory")
        reward = mark(question["prompt"], question["completion"])
        text = json.dumps({"reward": reward, "seconds": row["seconds"]})
        return self._say(
            200, text if row["kind"] == "answer" else f"Let me see. {text[: len(text) // 2]}"
        )

    def _say(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: the ledger has it all."""


def main(settings: dict[str, Any]) -> None:
    """Say the port on stdout, and serve until stdin closes, which it does when the parent ends, however it ends."""
    judge = Judge(**settings)
    print(judge.server_port, flush=True)
    threading.Thread(target=judge.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True).start()
    sys.stdin.buffer.read()
    os._exit(0)
