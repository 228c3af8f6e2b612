"""The judge's process: its habits, that it is nobody's but its caller's, and that it never outlives that one."""

import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from props import judge, slow_judge

ROOT = Path(__file__).parents[2]
posix = pytest.mark.skipif(os.name != "posix", reason="signals")
HONEST = {"scale": 0.0, "failures": 0.0, "hangs": 0}


def gone(pid, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def questions(n, completion="131"):
    return [{"id": i, "prompt": "91+40=", "completion": completion} for i in range(n)]


def score(served, asked, **settings):
    return asyncio.run(judge.score(served.url, asked, **{"backoff": 0.01, "timeout": 30.0} | settings))


@pytest.mark.parametrize(
    ("completion", "expected"),
    [("131", 1), ("121", 2 / 3), ("13", 2 / 3), ("1", 1 / 3), ("1310", 0.75), ("", 0), ("x31", 2 / 3)],
)
def test_a_mark_is_the_share_of_digits_in_their_place(completion, expected):
    assert slow_judge.mark("91+40=", completion) == pytest.approx(expected)


def test_it_answers_with_the_mark_writes_a_book_and_listens_on_the_loopback_only():
    with slow_judge.serve(**HONEST) as served:
        rewards = score(served, [*questions(3), {"prompt": "91+40=", "completion": "13"}]).rewards
        book = served.ledger()
        (listening,) = [c for c in psutil.Process(served.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert rewards == pytest.approx([1, 1, 1, 2 / 3])
    assert len(book) == 4 and {row["kind"] for row in book} == {"answer"}
    assert listening.laddr.ip == "127.0.0.1" and served.url.startswith("http://127.0.0.1:")


def test_what_becomes_of_a_try_is_its_fate_which_the_seed_the_question_and_the_try_alone_decide():
    asked = [*questions(12), *[question | {"id": f"short {question['id']}"} for question in questions(12, "13")]]
    for seed, workers in ((0, 1), (0, 8), (1, 8)):
        with slow_judge.serve(seed=seed, scale=0.0, hangs=0, room=1000) as served:
            score(served, asked, workers=workers)
            book = served.ledger()
        assert len(book) > 24
        for row in book:
            length = 2 if "short" in row["id"] else 3
            assert slow_judge.fate(seed, row["id"], row["try"], length) == (row["kind"], row["seconds"])


def test_fate_has_the_share_of_failures_asked_for_and_a_long_completion_takes_longer():
    long, short = ([slow_judge.fate(3, str(name), 1, length) for name in range(3000)] for length in (3, 2))
    kinds = Counter(kind for kind, _ in long)
    assert 0.17 < 1 - kinds["answer"] / 3000 < 0.23
    assert 2 < kinds["error"] / kinds["no JSON"] < 4
    mean = lambda tries: statistics.mean(seconds for kind, seconds in tries if kind == "answer")
    assert mean(long) > 1.6 * mean(short) > 0


def test_a_full_house_is_429_with_a_retry_after_and_asking_later_helps():
    with slow_judge.serve(scale=0.1, failures=0.0, hangs=0, room=1, spread=0.0) as served:
        scores = score(served, questions(6, "1"), workers=6, retries=30)
        kinds = Counter(row["kind"] for row in served.ledger())
    assert scores.missing == 0 and kinds["busy"] >= 1 and scores.retried == kinds["busy"]


def test_one_worker_hangs_with_one_request_and_a_retry_saves_it():
    with slow_judge.serve(scale=0.0, failures=0.0, hangs=1) as served:
        scores = score(served, questions(10), timeout=2.0, retries=5)
        book = served.ledger()
    assert scores.missing == 0 and scores.retried >= 1
    assert [row["seconds"] for row in book if row["kind"] == "hang"] == [1e9]


def test_it_ends_with_the_block_also_when_that_raises():
    with pytest.raises(KeyError), slow_judge.serve(**HONEST) as served:
        raise KeyError
    assert gone(served.pid)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(served.url.rstrip("/").rpartition(":")[2]))) != 0


def test_one_that_cannot_start_says_why():
    with (
        pytest.raises(RuntimeError, match="(?s)the judge did not start: .*SyntaxError"),
        slow_judge.serve(seed=object()),
    ):
        pytest.fail("it started")


HOLDER = """
import os, sys, time
sys.path.insert(0, "notebooks")
from props import slow_judge
with slow_judge.serve(hangs=0) as served:
    print(served.pid, flush=True)
    os.fork()
    time.sleep(600)
"""


@posix
def test_it_dies_with_its_parent_even_when_that_is_killed_and_a_fork_of_it_lives_on():
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True
    ) as parent:
        try:
            pid = int(parent.stdout.readline())
            assert not gone(pid, 0.3)
            parent.kill()  # the fork lives on, and with it the pipe that the judge reads
            assert gone(pid)
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


ROUND = f"""
import sys
sys.path[:0] = [{str(ROOT / "notebooks")!r}]
from props import judge, slow_judge
with slow_judge.serve(scale=1.0, hangs=1) as served:
    print(served.pid, flush=True)
    await judge.score(served.url, [{{"prompt": "91+40=", "completion": "131"}}] * 4, timeout=500)
"""


@posix
def test_a_kernel_that_is_interrupted_in_a_round_leaves_no_judge():
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(ROOT))
    pids = []

    def interrupt(message):
        if message["msg_type"] == "stream":
            pids.append(int(message["content"]["text"]))
            time.sleep(0.3)
            manager.interrupt_kernel()

    try:
        reply = client.execute_interactive(ROUND, timeout=60, output_hook=interrupt)
        assert reply["content"]["status"] == "error"
        assert gone(*pids)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
