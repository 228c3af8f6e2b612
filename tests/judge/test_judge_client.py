"""The client, against servers that answer as they are told."""

import asyncio
import email.utils
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from props import judge

GOOD = (200, '{"reward": 0.5}')
PATIENT = {"timeout": 20.0, "backoff": 0.01, "deadline": 60.0}


@contextmanager
def server(answer):
    """`answer(question, number of the try)` -> (status, text, headers), or None to say nothing until the end."""
    tries, held, most, lock, over = {}, [0], [0], threading.Lock(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm, wbufsize = "HTTP/1.1", True, -1

        def do_POST(self):
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                tries[question] = tries.get(question, 0) + 1
                held[0] += 1
                most[0] = max(most[0], held[0])
            said = answer(question, tries[question])
            if said is None:
                over.wait(60)
                said = GOOD
            with lock:
                held[0] -= 1
            status, text, *headers = said
            self.send_response(status)
            for name, value in {"Content-Length": str(len(text)), **(headers[0] if headers else {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

        def handle_error(self, *_):
            pass

    with Server(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True).start()
        running.url, running.tries, running.most = f"http://127.0.0.1:{running.server_port}/", tries, most
        try:
            yield running
        finally:
            over.set()
            running.shutdown()


def score(url, questions, **settings):
    return asyncio.run(judge.score(url, questions, **PATIENT | settings))


def adds_up(scores):
    assert scores.asked == scores.answered + scores.missing
    assert scores.tried == scores.asked + scores.retried - scores.untried
    assert all((reward is None) == bool(why) for reward, why in zip(scores.rewards, scores.why, strict=True))


def test_every_question_has_its_own_reward_in_the_order_asked():
    with server(lambda question, _: (200, json.dumps({"reward": len(question)}))) as at:
        scores = score(at.url, ["a", "bbb", "cc", "dddd"], workers=2)
    assert scores.rewards == [1.0, 3.0, 2.0, 4.0] and scores.tries == [1] * 4
    adds_up(scores)


def test_no_question_is_no_request():
    scores = score("http://127.0.0.1:9/", [])
    assert scores.rewards == [] and scores.asked == scores.tried == 0


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
    "latin": (200, '{"reward": 0.5', {"Content-Type": "text/html"}),
}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_a_try_that_fails_is_repeated_and_what_never_comes_is_none_and_not_zero(first):
    with server(lambda question, n: first if question == "bad" or (question == "once" and n == 1) else GOOD) as at:
        scores = score(at.url, ["good", "once", "bad"], retries=2)
    assert scores.rewards == [0.5, 0.5, None] and scores.tries == [1, 2, 3]
    assert scores.why[2] == (f"HTTP {first[0]}" if first[0] != 200 else "malformed")
    assert (scores.asked, scores.answered, scores.retried, scores.missing) == (3, 2, 3, 1)
    assert "3 asked, 2 answered, 3 retried, 1 missing (1 " in str(scores)
    adds_up(scores)


@pytest.mark.parametrize("status", [400, 401, 404, 422, 301])
def test_a_refusal_that_will_not_change_is_not_repeated(status):
    with server(lambda question, n: (status, "", {"Location": "/"})) as at:
        scores = score(at.url, ["a"], retries=5)
    assert scores.tries == [1] and scores.why == [f"HTTP {status}"] and scores.rewards == [None]


def test_a_judge_that_is_not_there_and_one_that_hangs_up_are_missing_rewards():
    with server(lambda *_: GOOD) as at:
        url = at.url
    scores = score(url, ["a", "b"], retries=1)
    assert scores.rewards == [None, None] and scores.tries == [2, 2] and scores.why == ["ConnectError"] * 2
    adds_up(scores)


def test_a_hanging_try_costs_its_timeout_and_the_next_gets_the_reward():
    with server(lambda question, n: None if n == 1 and question == "a" else GOOD) as at:
        scores = score(at.url, ["a", "b"], timeout=0.5, retries=4)
    assert scores.rewards == [0.5, 0.5] and scores.tries[0] >= 2
    adds_up(scores)


def test_the_deadline_ends_the_round_and_what_was_never_tried_is_counted():
    with server(lambda *_: None) as at:
        began = time.monotonic()
        scores = score(at.url, ["a", "b", "c"], workers=1, deadline=0.5)
        assert time.monotonic() - began < 20
    assert scores.rewards == [None] * 3 and scores.why == ["deadline"] * 3
    assert scores.tried == 1 and scores.untried == 2 and scores.seconds >= 0.5
    adds_up(scores)


def test_no_more_requests_are_under_way_than_there_are_workers():
    def slow(*_):
        time.sleep(0.02)
        return GOOD

    with server(slow) as at:
        score(at.url, [str(i) for i in range(24)], workers=3)
        assert at.most == [3]


def test_the_largest_are_asked_first():
    order = []
    with server(lambda question, _: order.append(question) or GOOD) as at:
        score(at.url, ["a", "ccc", "bb"], workers=1)
        score(at.url, ["y", "z", "x"], workers=1, size=ord)
    assert order == ["ccc", "bb", "a", "z", "y", "x"]


def waited(header):
    times = []
    with server(lambda question, n: times.append(time.monotonic()) or ((429, "", header()) if n == 1 else GOOD)) as at:
        scores = score(at.url, ["a"], backoff=0.001)
    assert scores.rewards == [0.5]
    return times[1] - times[0]


def test_a_retry_waits_at_least_as_long_as_the_judge_asks():
    assert waited(lambda: {"Retry-After": "0.3"}) >= 0.3
    in_2_s = lambda: {"Retry-After": email.utils.formatdate(time.time() + 2, usegmt=True)}  # to the second
    assert waited(in_2_s) >= 0.5


@pytest.mark.parametrize("header", ["soon", "", "nan", "-5", "Thu, 01 Jan 1970 00:00:00 GMT", "Thu, 99 Foo"])
def test_a_retry_after_that_says_nothing_delays_nothing(header):
    assert waited(lambda: {"Retry-After": header}) < 20


def test_waiting_holds_no_worker():
    order = []

    def answer(question, n):
        order.append(question)
        return (503, "", {"Retry-After": "1"}) if n == 1 and question == "aa" else GOOD

    with server(answer) as at:
        scores = score(at.url, ["aa", "b"], workers=1)
    assert order == ["aa", "b", "aa"]
    assert scores.rewards == [0.5, 0.5] and scores.tries == [2, 1]


def test_a_reader_of_your_own_and_headers_go_through():
    with server(lambda *_: (200, '{"verdict": {"score": 8}}')) as at:
        read = lambda body: body["verdict"]["score"] / 10
        assert score(at.url, ["a"], read=read, headers={"Authorization": "Bearer x"}).rewards == [0.8]
        assert score(at.url, ["a"], read=lambda body: float("nan"), retries=0).why == ["malformed"]


def test_a_proxy_of_the_environment_is_not_asked_about_this_machine(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with server(lambda *_: GOOD) as at:
        assert score(at.url, ["a"], retries=0).rewards == [0.5]


@pytest.mark.parametrize(
    "setting",
    [{"workers": 0}, {"workers": 1.5}, {"timeout": 0}, {"retries": -1}, {"deadline": 0}, {"backoff": float("nan")}],
    ids=str,
)
def test_a_setting_that_cannot_be_is_named(setting):
    (name,) = setting
    with pytest.raises(ValueError, match=f"score: {name} = "):
        score("http://127.0.0.1:9/", ["a"], **setting)


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
