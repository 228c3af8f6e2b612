"""How soon does the sandbox's first event arrive, and how many events a second does it carry?

    python benchmarks/bench_sandbox.py

Prints, side by side from one run: the first event of the same function (it imports torch and a transformers
model, then yields) by fork of the warm server, by a fresh interpreter, and the ratio; events a second of
`labkit.events.Step` through the sandbox and in this process; and how long `stop` takes on a child that hangs.
"""

import ctypes
import statistics
import time

from labkit import sandbox
from labkit.events import Step


def one():
    import torch  # noqa: F401
    import transformers.models.gpt2.modeling_gpt2  # noqa: F401

    yield Step(1)


def many(n):
    for number in range(n):
        yield Step(number, loss=0.5, reward=0.25, reward_std=0.1, kl=0.01, grad_norm=1.5, extra={"kl_F": 0.03})


def hang():
    yield Step(1)
    ctypes.PyDLL(None).sleep(600)  # in C, holding the GIL


def first_event(**options):
    """Seconds from the call to the first event."""
    began = time.perf_counter()
    with sandbox.start(one, **options) as child:
        while not child.drain():
            child.wait_for_news()
        return time.perf_counter() - began


def stop_hanging():
    """Seconds that `stop` takes until the child is dead."""
    child = sandbox.start(hang)
    while not child.drain():
        child.wait_for_news()
    began = time.perf_counter()
    child.stop()
    seconds = time.perf_counter() - began
    assert not child.alive
    return seconds


def rate(n, through):
    began = time.perf_counter()
    assert len(through(n)) == n
    return n / (time.perf_counter() - began)


def line(what, value, unit="", worst=""):
    print(f"{what:<42} {value:>10} {unit}{f'   (worst: {worst})' if worst else ''}")


def main():
    began = time.perf_counter()
    sandbox.run(one)
    line("cold: the server starts, imports, forks", f"{(time.perf_counter() - began) * 1e3:.0f}", "ms")
    warm, fresh = [first_event() for _ in range(30)], [first_event(fresh=True) for _ in range(3)]
    for what, seconds in (("fork of the warm server", warm), ("fresh interpreter", fresh)):
        middle, worst = statistics.median(seconds) * 1e3, max(seconds) * 1e3
        line(f"first event, {what}", f"{middle:.1f}", "ms", f"{worst:.1f}")
    line("ratio", f"{statistics.median(fresh) / statistics.median(warm):.0f}")
    carried = [rate(200_000, lambda n: sandbox.run(many, n).events) for _ in range(3)]
    local = [rate(200_000, lambda n: list(many(n))) for _ in range(3)]
    line("Steps through the sandbox", f"{statistics.median(carried):,.0f}", "/s", f"{min(carried):,.0f}")
    line("Steps in this process", f"{statistics.median(local):,.0f}", "/s", f"{min(local):,.0f}")
    stops = [stop_hanging() for _ in range(20)]
    middle, worst = statistics.median(stops) * 1e3, max(stops) * 1e3
    line("stop of a child that hangs in C", f"{middle:.1f}", "ms", f"{worst:.1f}")
    sandbox.shutdown()


if __name__ == "__main__":
    main()
