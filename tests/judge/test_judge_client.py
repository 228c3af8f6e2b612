"""The client, against servers that answer by a rule of the test."""

import asyncio
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from props import judge

GOOD = (200, '{"reward": 0.5}')
PATIENT = {"timeout": 20.0, "backoff": 0.01}


class Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, *_):
        pass


@contextmanager
def server(answer):
    """`answer(question, number of the try)` -> (status, text, headers), or None to say nothing until the end."""
    tries, under_way, lock, over = {}, [], threading.Lock(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm, wbufsize = "HTTP/1.1", True, -1

        def do_POST(self):
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                tries[question] = tries.get(question, 0) + 1
                under_way.append(question)
                running.most = max(running.most, len(under_way))
            reply = answer(question, tries[question])
            if reply is None:
                over.wait(60)
                reply = GOOD
            with lock:
                under_way.remove(question)
            status, text, *headers = reply
            self.send_response(status)
            for name, value in {"Content-Length": str(len(text)), **(headers[0] if headers else {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    with Server(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True).start()
        running.url, running.most = f"http://127.0.0.1:{running.server_port}/", 0
        try:
            yield running
        finally:
            over.set()
            running.shutdown()


def score(url, questions, **settings):
    return asyncio.run(judge.score(url, questions, **PATIENT | settings))


def test_every_question_has_its_own_reward_in_the_order_asked_and_a_proxy_is_not(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with server(lambda question, _: (200, json.dumps({"reward": len(question)}))) as at:
        scores = score(at.url, ["a", "bbb", "cc", "dddd"], workers=2)
        assert score(at.url, []).rewards == []
    assert scores.rewards == [1.0, 3.0, 2.0, 4.0] and scores.tries == [1] * 4 and scores.why == [""] * 4


FIRST = {
    "HTTP 500": (500, "no"),
    "HTTP 503": (503, ""),
    "HTTP 429": (429, ""),
    "HTTP 408": (408, ""),
    "no JSON": (200, "I would say 7 of 10"),
    "half of it": (200, '{"reward": 0.'),
    "another shape": (200, "[1, 2]"),
    "no reward": (200, "{}"),
    "null": (200, '{"reward": null}'),
    "a text": (200, '{"reward": "0.5"}'),
    "NaN": (200, '{"reward": NaN}'),
    "infinity": (200, '{"reward": Infinity}'),
    "true": (200, '{"reward": true}'),
}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_a_try_that_fails_is_repeated_and_what_never_comes_is_none_and_not_zero(first):
    with server(lambda question, n: first if question == "bad" or (question == "once" and n == 1) else GOOD) as at:
        scores = score(at.url, ["good", "once", "bad"], retries=2)
    assert scores.rewards == [0.5, 0.5, None] and scores.tries == [1, 2, 3]
    assert scores.why[2] == (f"HTTP {first[0]}" if first[0] != 200 else "malformed")
    assert "3 asked, 3 retried, 1 missing (1 " in str(scores)


@pytest.mark.parametrize("status", [400, 401, 404, 422, 301])
def test_a_refusal_that_will_not_change_is_not_repeated(status):
    with server(lambda question, n: (status, "", {"Location": "/"})) as at:
        scores = score(at.url, ["a"], retries=5)
    assert scores.tries == [1] and scores.why == [f"HTTP {status}"] and scores.rewards == [None]


def test_a_judge_that_is_not_there_is_a_missing_reward():
    with server(lambda *_: GOOD) as at:
        url = at.url
    scores = score(url, ["a", "b"], retries=1)
    assert scores.rewards == [None, None] and scores.tries == [2, 2] and scores.why == ["ConnectError"] * 2


def test_a_hanging_try_costs_its_timeout_and_the_next_gets_the_reward():
    with server(lambda question, n: None if n == 1 and question == "a" else GOOD) as at:
        scores = score(at.url, ["a", "b"], timeout=0.5, retries=4)
    assert scores.rewards == [0.5, 0.5] and scores.tries[0] >= 2


def test_no_more_requests_are_under_way_than_there_are_workers():
    def slow(*_):
        time.sleep(0.02)
        return GOOD

    with server(slow) as at:
        score(at.url, [str(i) for i in range(24)], workers=3)
        assert at.most == 3


@pytest.mark.parametrize("header", ["0.3", "soon", "", "nan", "-5", "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_a_retry_waits_at_least_as_long_as_the_judge_asks_and_holds_no_worker(header):
    times, order = [], []

    def answer(question, n):
        order.append(question)
        if question == "a":
            times.append(time.monotonic())
            if n == 1:
                return (429, "", {"Retry-After": header})
        return GOOD

    with server(answer) as at:
        scores = score(at.url, ["a", "b"], workers=1, backoff=0.001)
    assert scores.rewards == [0.5, 0.5] and scores.tries == [2, 1]
    if header == "0.3":
        assert times[1] - times[0] >= 0.3 and order == ["a", "b", "a"]


def test_a_round_that_is_cancelled_ends_at_once():
    async def cancelled(url):
        task = asyncio.create_task(judge.score(url, ["a"] * 4, workers=2, timeout=60))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(asyncio.all_tasks())

    with server(lambda *_: None) as at:
        assert asyncio.run(cancelled(at.url)) == 1
