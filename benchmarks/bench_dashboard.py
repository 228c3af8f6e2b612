"""What the live dashboard costs: the same run bare and watched, side by side, in one real kernel.

    python benchmarks/bench_dashboard.py             a front end that takes every message, without a browser
    python benchmarks/bench_dashboard.py --browser   JupyterLab in headless Chromium; also times the page's drawing

The run yields 1,000 steps of 5 ms from a child process. Bare: `labkit.sandbox.run`. Live: `await labkit.watch(...)`
with four panels. Ratios compare the two in one kernel; the share is the processor time of recording and drawing, and
of the whole kernel process, over the wall time of the run. The first half is timed in this process: the cost of one
step and of one update after 10 and after 10,000 steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from labkit.display import Board
from labkit.events import Step

ROOT = Path(__file__).resolve().parent.parent
STEPS, PAUSE, ROUNDS = 1000, 0.005, 3

SETUP = f"""
import json, time
import labkit
from labkit import sandbox
from labkit.display import dashboard
from labkit.events import Step

def train(steps={STEPS}, pause={PAUSE}):
    due = time.perf_counter()
    for s in range(1, steps + 1):
        due += pause
        while time.perf_counter() < due:
            time.sleep(max(0.0, due - time.perf_counter()))
        yield Step(step=s, round=1 + s // 8, grad_norm=1.0 + s % 7, kl=s / 5000, reward=s / steps,
                   memory_allocated=3e8 + s, memory_reserved=5e8 + s)

boards = []
class Kept(dashboard.Board):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.spent, self.updates = 0.0, 0  # seconds of this thread
        boards.append(self)
    def _record(self):
        start = time.thread_time()
        super()._record()
        self.spent += time.thread_time() - start
        self.updates += 1
dashboard.Board = Kept
sandbox.run(train, 5)                       # the server starts
_ = await labkit.watch(train, 5)            # matplotlib loads
import asyncio; await asyncio.sleep(2)
"""
BARE = """
cpu, wall = time.process_time(), time.perf_counter()
run = sandbox.run(train)
print("BENCH", json.dumps({"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall,
                           "child": run.outcome.seconds}))
"""
LIVE = """
_draw, ends = Kept.draw, []
def draw(self):
    ends.append((time.process_time(), time.perf_counter()))   # the live part ends here; then the picture
    _draw(self)
Kept.draw = draw
cpu, wall = time.process_time(), time.perf_counter()
run = await labkit.watch(train, label="fix")
b, Kept.draw = boards[-1], _draw
print("BENCH", json.dumps({"cpu": ends[0][0] - cpu, "wall": ends[0][1] - wall, "child": run.outcome.seconds,
      "spent": b.spent, "updates": b.updates, "bytes": sum(len(track.rows.packed()) for track in b.tracks),
      "picture": time.perf_counter() - ends[0][1]}))
"""


class SilentPage:
    """Takes what the board sends, as ipywidgets would: content to JSON, buffers as they are."""

    spec: dict[str, Any] = {}

    def send(self, content: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        self.last = json.dumps(content)


def step(number: int) -> Step:
    return Step(step=number, grad_norm=1.0, kl=0.1, reward=0.5, memory_allocated=3e8, memory_reserved=5e8)


def growth() -> None:
    """One append and one update of 20 rows, after 10 and after 10,000 steps."""
    rows = []
    for before in (10, 10_000):
        board = Board()
        track = board.add("fix")
        board.widget = SilentPage()
        track.feed(step(i) for i in range(before))
        board.refresh()
        appends, updates, number = [], [], before
        for _ in range(200):
            batch = [step(number + i) for i in range(20)]
            number += 20
            start = time.perf_counter()
            for one in batch:
                track.rows.append(one)
            middle = time.perf_counter()
            board.refresh("fix: 402 steps, 2.0 s")
            updates.append(time.perf_counter() - middle)
            appends.append((middle - start) / 20)
        rows.append((before, statistics.median(appends), statistics.median(updates)))
    print("after   one append   one update (without the socket)")
    for before, append, update in rows:
        print(f"{before:>6}   {append * 1e6:7.2f} µs   {update * 1e6:7.1f} µs")
    print(f" ratio   {rows[1][1] / rows[0][1]:7.2f}      {rows[1][2] / rows[0][2]:7.2f}\n")


def report(bare: list[dict[str, float]], live: list[dict[str, float]], page: str = "") -> None:
    middle = lambda runs, key: statistics.median(r[key] for r in runs)
    share = statistics.median(r["spent"] / r["wall"] for r in live)
    kernel = statistics.median((a["cpu"] - b["cpu"]) / a["wall"] for a, b in zip(live, bare, strict=True))
    print(f"{STEPS} steps of {PAUSE * 1e3:g} ms, {ROUNDS} times, medians")
    print(f"wall, bare           {middle(bare, 'wall'):.3f} s   (in the child {middle(bare, 'child'):.3f} s)")
    print(f"wall, live           {middle(live, 'wall'):.3f} s   (in the child {middle(live, 'child'):.3f} s)")
    print(f"ratio in the child   {middle(live, 'child') / middle(bare, 'child'):.4f}")
    print(f"recording + drawing  {share:.2%} of the wall time, {middle(live, 'updates'):.0f} updates")
    print(f"kernel, live - bare  {kernel:.2%} of the wall time (all threads: sockets, event loop)")
    print(f"rows sent            {middle(live, 'bytes') / middle(live, 'updates'):.0f} bytes an update")
    print(f"the picture          {middle(live, 'picture') * 1e3:.0f} ms, once, at the end")
    if page:
        print(page)


def in_a_kernel() -> None:
    """A kernel, and a front end that asks for the rows as the page does and reads everything."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")

    def execute(code: str) -> str:
        said = []
        sent = client.execute(code)
        while True:
            message = client.get_iopub_msg(timeout=120)
            content, kind = message["content"], message["msg_type"]
            if kind == "stream":
                said.append(content["text"])
            elif kind == "error":
                raise RuntimeError("\n".join(content["traceback"]))
            elif kind == "comm_open" and content["data"]["state"].get("_model_name") == "AnyModel":
                data = {"method": "custom", "content": {"kind": "hello"}}
                client.shell_channel.send(client.session.msg("comm_msg", {"comm_id": content["comm_id"], "data": data}))
            elif (
                kind == "status"
                and content["execution_state"] == "idle"
                and message["parent_header"].get("msg_id") == sent
            ):
                return "".join(said)

    try:
        execute(SETUP)
        bare, live = [], []
        for _ in range(ROUNDS):
            bare.append(found(execute(BARE)))
            live.append(found(execute(LIVE)))
        report(bare, live)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def found(text: str) -> dict[str, float]:
    return json.loads(text.split("BENCH", 1)[1].splitlines()[0])


def in_a_browser() -> None:
    """The same cells in JupyterLab; what the page spends in animation frames is its drawing."""
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook

    sys.path.insert(0, str(ROOT / "tests" / "browser"))
    import jupyter

    count = """(() => { window.drawing = { ms: 0, frames: 0 };
        const ask = window.requestAnimationFrame.bind(window);
        window.requestAnimationFrame = (f) => ask((t) => { const s = performance.now(); try { f(t); } finally {
            if (f.name === "draw") { drawing.ms += performance.now() - s; drawing.frames++; } } }); })()"""
    with tempfile.TemporaryDirectory() as folder:
        cells = [new_code_cell(code) for code in [SETUP, *[BARE, LIVE] * ROUNDS]]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        book = new_notebook(cells=cells, metadata={"kernelspec": kernel})
        nbformat.write(book, Path(folder) / "bench.ipynb")
        with jupyter.Lab(folder) as lab, lab.browser() as browser:
            page = browser.chromium.new_page(viewport=browser.viewport)
            page.add_init_script(count)
            notebook = jupyter.Notebook(lab, page, "bench.ipynb")
            page.goto(f"{lab.url}/lab/tree/bench.ipynb?reset&token={jupyter.TOKEN}")
            notebook.wait_for_kernel()
            notebook.restart_and_run_all()
            notebook.wait_until_done(300)
            drawing = page.evaluate("() => window.drawing")
            outputs = [c["outputs"] for c in notebook.save()["cells"][1:]]
            streams = ["".join(o["text"]) for cell in outputs for o in cell if o["output_type"] == "stream"]
            results = [found(text) for text in streams]
    each = drawing["ms"] / max(1, drawing["frames"])
    line = f"the page             {each:.2f} ms a frame, {drawing['frames']} frames in {ROUNDS} runs"
    report(results[0::2], results[1::2], line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--browser", action="store_true", help="in JupyterLab with headless Chromium")
    asked = parser.parse_args()
    growth()
    (in_a_browser if asked.browser else in_a_kernel)()


if __name__ == "__main__":
    main()
