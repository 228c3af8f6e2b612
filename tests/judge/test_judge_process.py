"""The judge's process: its habits, that it is nobody's but its caller's, and that it never outlives that one."""

import asyncio
import os
import signal
import socket
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


def test_it_answers_with_the_mark_and_writes_a_book():
    with slow_judge.serve(**HONEST) as served:
        rewards = score(served, [*questions(3), {"prompt": "91+40=", "completion": "13"}]).rewards
        book = served.ledger()
    assert rewards == pytest.approx([1, 1, 1, 2 / 3])
    assert len(book) == 4 and {row["kind"] for row in book} == {"answer"}


def test_failures_have_the_share_asked_for_and_both_kinds():
    with slow_judge.serve(seed=3, scale=0.0, hangs=0, failures=0.2, room=1000) as served:
        scores = score(served, questions(300), retries=0)
        kinds = Counter(row["kind"] for row in served.ledger())
    assert 0.12 < scores.missing / 300 < 0.28
    assert kinds["error"] > kinds["no JSON"] > 3 and kinds["error"] == scores.why.count("HTTP 500")


def test_its_times_and_failures_depend_on_the_seed_the_question_and_the_try_alone():
    books = []
    for seed, workers in ((0, 1), (0, 8), (1, 8)):
        with slow_judge.serve(seed=seed, scale=0.0, hangs=0, room=1000) as served:
            score(served, questions(24), workers=workers)
            books.append({(row["id"], row["try"]): (row["kind"], row["seconds"]) for row in served.ledger()})
    assert books[0] == books[1] != books[2]


def test_a_long_completion_takes_longer_and_fate_knows_it_without_asking():
    with slow_judge.serve(seed=5, hangs=0, scale=1e-6, room=1000) as served:
        score(served, [*questions(50, "13"), *[q | {"id": f"long {q['id']}"} for q in questions(50)]], retries=0)
        book = served.ledger()
    mean = lambda rows: sum(row["seconds"] for row in rows if row["kind"] == "answer") / len(rows)
    long, short = ([row for row in book if ("long" in row["id"]) is which] for which in (True, False))
    assert mean(long) > 1.6 * mean(short) > 0
    for row in book:
        length = 3 if row in long else 2
        assert slow_judge.fate(5, row["id"], row["try"], length) == (row["kind"], row["seconds"])


def test_a_full_house_is_429_with_a_retry_after_and_asking_later_helps():
    with slow_judge.serve(scale=0.02, failures=0.0, hangs=0, room=2, spread=0.0) as served:
        scores = score(served, questions(6, "1"), workers=6, retries=30)
        kinds = Counter(row["kind"] for row in served.ledger())
    assert scores.missing == 0 and kinds["busy"] >= 3 and scores.retried == kinds["busy"]


def test_one_worker_hangs_with_one_request_and_a_retry_saves_it():
    with slow_judge.serve(scale=0.0, failures=0.0, hangs=1) as served:
        scores = score(served, questions(10), timeout=2.0, retries=5)
        book = served.ledger()
    assert scores.missing == 0 and scores.retried >= 1
    assert [row["seconds"] for row in book if row["kind"] == "hang"] == [1e9]


def test_it_listens_on_the_loopback_only():
    with slow_judge.serve(**HONEST) as served:
        assert served.url.startswith("http://127.0.0.1:")
        (listening,) = [c for c in psutil.Process(served.pid).net_connections() if c.status == psutil.CONN_LISTEN]
        assert listening.laddr.ip == "127.0.0.1"


def test_two_at_once_do_not_meet():
    with slow_judge.serve(seed=0, **HONEST) as one, slow_judge.serve(seed=0, **HONEST) as other:
        assert one.url != other.url and one.pid != other.pid
        score(one, questions(5))
        assert len(one.ledger()) == 5 and other.ledger() == []


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
import sys, time
sys.path.insert(0, "notebooks")
from props import slow_judge
with slow_judge.serve(hangs=0) as served:
    print(served.pid, flush=True)
    {then}
    time.sleep(600)
"""


@posix
@pytest.mark.parametrize("then", ["", "import os; os.fork()", "import threading, asyncio"])
def test_it_dies_with_its_parent_even_when_that_is_killed(then):
    parent = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(then=then)], stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True
    )
    try:
        pid = int(parent.stdout.readline())
        assert not gone(pid, 0.3)
        parent.kill()  # the fork lives on, and with it the pipe that the judge reads
        assert gone(pid)
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()


ROUND = f"""
import sys
sys.path[:0] = [{str(ROOT / "notebooks")!r}]
from props import judge, slow_judge
with slow_judge.serve(scale=1.0, hangs=1) as served:
    print(served.pid, flush=True)
    print("go", flush=True)
    await judge.score(served.url, [{{"prompt": "91+40=", "completion": "131"}}] * 4, timeout=500)
"""


@posix
@pytest.mark.parametrize("how", ["interrupt", "kill"])
def test_a_kernel_that_is_interrupted_or_killed_in_a_round_leaves_no_judge(how):
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(ROOT))
    try:
        message, said = client.execute(ROUND), ""
        while "go" not in said:
            reply = client.get_iopub_msg(timeout=60)
            said += reply["content"].get("text", "") if reply["msg_type"] == "stream" else ""
        pid = int(said.split()[0])
        assert psutil.pid_exists(pid)
        if how == "interrupt":
            time.sleep(0.3)
            manager.interrupt_kernel()
            while (reply := client.get_shell_msg(timeout=60))["parent_header"]["msg_id"] != message:
                pass
            assert reply["content"]["status"] == "error"
        else:
            os.kill(manager.provisioner.pid, signal.SIGKILL)
        assert gone(pid)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def test_importing_the_wing_loads_no_http_library():
    code = "import sys, props.judge; print({'httpx', 'tenacity', 'torch'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "notebooks", capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "set()", done.stderr
