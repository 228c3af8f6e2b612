"""Draw random requests, let PyTorch's compiled allocator answer them, write the recording. See README.md."""

import argparse
import gzip
import json
import os
import random
import subprocess
from pathlib import Path

STATS = [
    "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "segments",
    "num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free",
]
MIB = 1 << 20


def size(draw):
    kind = draw.random()
    if kind < 0.1:  # the edges between pools and segment sizes
        edge = draw.choice([512, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 32 * MIB, 64 * MIB])
        return edge + draw.choice([-1, 0, 1])
    if kind < 0.4:
        return draw.randrange(1, MIB)
    if kind < 0.65:
        return draw.randrange(MIB, 10 * MIB)
    if kind < 0.9:
        return draw.randrange(10 * MIB, 80 * MIB)
    return draw.randrange(80 * MIB, 300 * MIB)


def requests(draw, count, streams, fractions, live_target):
    live, made = [], 0
    for _ in range(count):
        kind = draw.random()
        if kind < 0.01:
            yield {"op": "empty_cache"}
        elif kind < 0.02 and fractions:
            yield {"op": "set_fraction", "fraction": draw.choice(fractions)}
        elif live and kind < 0.15 + 0.5 * len(live) / live_target:
            yield {"op": "free", "id": live.pop(draw.randrange(len(live)))}
        else:
            made += 1
            live.append(made)
            event = {"op": "malloc", "id": made, "bytes": size(draw)}
            if streams > 1:
                event["stream"] = draw.randrange(streams)
            yield event


def command(event):
    if event["op"] == "malloc":
        return f"m {event['id']} {event['bytes']} {event.get('stream', 0)}"
    if event["op"] == "free":
        return f"f {event['id']}"
    return f"F {event['fraction']!r}" if event["op"] == "set_fraction" else "e"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--events", type=int, default=1500)
    parser.add_argument("--total", type=int, default=1_500_000_000)
    parser.add_argument("--settings", default="")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--fractions", type=float, nargs="*", default=[])
    parser.add_argument("--live", type=int, default=60, help="about how many blocks are in use at a time")
    args = parser.parse_args()

    events = list(requests(random.Random(args.seed), args.events, args.streams, args.fractions, args.live))
    commands = []
    for number, event in enumerate(events):
        commands.append(command(event))
        if number % 250 == 249:
            commands.append("S")
    environment = os.environ | {"STUB_TOTAL": str(args.total), "TORCH_CPP_LOG_LEVEL": "FATAL"}
    environment["PYTORCH_CUDA_ALLOC_CONF"] = args.settings
    done = subprocess.run(
        ["./record"], input="\n".join(commands), capture_output=True, text=True, env=environment, check=True
    )
    answers = iter(json.loads(line) for line in done.stdout.splitlines())
    header = {
        "format": "allocator-trace/1",
        "torch": "2.13.0",
        "source": "PyTorch's own CUDACachingAllocator, driven event by event over a stub CUDA runtime (no kernels)",
        "recorder": f"recorder/record.py, seed {args.seed}",
        "total_memory": args.total,
        "settings": args.settings,
        "stats": STATS,
    }
    for number, event in enumerate(events):
        answer = next(answers)
        if event["op"] == "malloc":
            event["oom"] = bool(answer["message"])
            if answer["message"]:
                event["message"] = answer["message"]
        event["stats"] = answer["stats"]
        if number % 250 == 249:
            event["segments"] = next(answers)
    lines = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in [header, *events])
    args.out.write_bytes(gzip.compress(lines.encode(), mtime=0))


if __name__ == "__main__":
    main()
