"""How fast the allocator simulator replays, and what the free list's form costs. Side by side, one process, best of N.

    python benchmarks/bench_allocator.py [--repeat 7] [--profile]

First table: events replayed per second on each recording, with reading it and comparing every number.
Second table: the same requests with three forms of the free list, as ratios to the shipped one.
"""

from __future__ import annotations

import argparse
import cProfile
import platform
import pstats
import random
import sys
from bisect import bisect_left, insort
from pathlib import Path
from time import perf_counter

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path += [str(TESTS / "memory"), str(TESTS.parent / "notebooks")]

from props.card import Allocator, Block, BlockPool, OutOfMemory  # noqa: E402
from traces import replay  # noqa: E402

TRACES = sorted((TESTS / "data" / "allocator-traces").glob("*.jsonl.gz"))
MIB = 1 << 20


class IntegerPool(BlockPool):
    """The free list as sorted integers, `size << 64 | address`, and a dict from these to the blocks."""

    __slots__ = ("blocks",)

    def __init__(self, is_small: bool) -> None:
        super().__init__(is_small)
        self.blocks: dict[int, Block] = {}

    def insert(self, block: Block) -> None:
        block.born = self.calls
        place = block.size << 64 | block.address
        self.blocks[place] = block
        try:
            insort(self.free[block.stream], place)
        except KeyError:
            self.free[block.stream] = [place]

    def erase(self, block: Block) -> None:
        place = block.size << 64 | block.address
        del self.blocks[place]
        places = self.free[block.stream]
        del places[bisect_left(places, place)]


class IntegerAllocator(Allocator):
    def __init__(self, total_memory: int) -> None:
        super().__init__(total_memory)
        self._small, self._large = IntegerPool(True), IntegerPool(False)

    def _get_free_block(self, pool: BlockPool, stream: int, size: int) -> Block | None:
        assert isinstance(pool, IntegerPool)
        places = pool.free.get(stream)
        if not places:
            return None
        index = bisect_left(places, size << 64)
        return pool.blocks.pop(places.pop(index)) if index < len(places) else None


class ScanPool(BlockPool):
    """The free list unsorted: cheap to change, every search looks at every block."""

    __slots__ = ("blocks",)

    def __init__(self, is_small: bool) -> None:
        super().__init__(is_small)
        self.blocks: dict[int, Block] = {}

    def insert(self, block: Block) -> None:
        block.born = self.calls
        self.blocks[block.address] = block

    def erase(self, block: Block) -> None:
        del self.blocks[block.address]


class ScanAllocator(Allocator):
    def __init__(self, total_memory: int) -> None:
        super().__init__(total_memory)
        self._small, self._large = ScanPool(True), ScanPool(False)

    def _get_free_block(self, pool: BlockPool, stream: int, size: int) -> Block | None:
        assert isinstance(pool, ScanPool)
        fitting = [(b.size, b.address) for b in pool.blocks.values() if b.size >= size and b.stream == stream]
        return pool.blocks.pop(min(fitting)[1]) if fitting else None


def requests(count: int, live: int) -> list[tuple[bool, int]]:
    """(True, bytes) allocates, (False, n) frees the n-th block in use; about `live` blocks are in use."""
    draw, held, made = random.Random(0), 0, []
    for _ in range(count):
        if held and draw.random() < 0.5 * held / live:
            made.append((False, draw.randrange(held)))
            held -= 1
        else:
            made.append((True, draw.randrange(1, draw.choice([MIB, 8 * MIB, 64 * MIB]))))
            held += 1
    return made


def drive(gpu: Allocator, calls: list[tuple[bool, int]]) -> tuple[float, tuple[int, ...]]:
    held: list[Block] = []
    start = perf_counter()
    for allocates, number in calls:
        if allocates:
            held.append(gpu.malloc(number))
        else:
            held[number], held[-1] = held[-1], held[number]
            gpu.free(held.pop())
    seconds = perf_counter() - start
    return seconds, (gpu.allocated_bytes, gpu.reserved_bytes, gpu.inactive_split_bytes, gpu.num_device_alloc)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7, help="runs of each; the best counts")
    parser.add_argument("--profile", action="store_true", help="where the time goes in one replay-like run")
    args = parser.parse_args()
    print(f"Python {platform.python_version()}, best of {args.repeat}")
    print(f"{'recording':32}{'events':>8}{'events/s':>12}")
    for path in TRACES:
        seconds = float("inf")
        for _ in range(args.repeat):
            start = perf_counter()
            found = replay(path)
            seconds = min(seconds, perf_counter() - start)
            assert found
        print(f"{path.name.removesuffix('.jsonl.gz'):32}{found.events:8}{found.events / seconds:12,.0f}")

    print(f"\n{'free list':24}{'50 in use':>12}{'500 in use':>12}{'5000 in use':>12}   (time / shipped)")
    programs = [requests(20_000, live) for live in (50, 500, 5000)]
    kinds = {"sorted tuples (shipped)": Allocator, "sorted integers": IntegerAllocator, "unsorted": ScanAllocator}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for program in programs:
        rows = set()
        best = dict.fromkeys(kinds, float("inf"))
        for _ in range(min(args.repeat, 3)):
            for name, kind in kinds.items():
                seconds, row = drive(kind(1 << 50), program)
                best[name] = min(best[name], seconds)
                rows.add(row)
        assert len(rows) == 1, "the three forms must decide alike"
        for name in kinds:
            times[name].append(best[name] / best["sorted tuples (shipped)"])
    for name, ratios in times.items():
        print(f"{name:24}" + "".join(f"{ratio:12.2f}" for ratio in ratios))

    if args.profile:
        profile = cProfile.Profile()
        profile.runcall(drive, Allocator(1 << 50), programs[1])
        pstats.Stats(profile).sort_stats("tottime").print_stats(10)


if __name__ == "__main__":
    try:
        main()
    except OutOfMemory as error:  # the programs above fit; say so plainly if they ever do not
        raise SystemExit(f"bench_allocator: {error}") from error
