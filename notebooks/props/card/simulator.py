"""PyTorch's CUDA caching allocator for one device, in plain Python: what it reserves, splits, keeps and refuses.

It moves no bytes: a `Block` is an address and a size. Given the same requests it makes the decisions that
`c10/cuda/CUDACachingAllocator.cpp` makes (torch 2.13), so its statistics equal PyTorch's after every call.

How it works. The driver hands out **segments** (`cudaMalloc`); the allocator cuts them into **blocks** and keeps
freed blocks for the next request (the cache). Requests up to 1 MiB live in 2 MiB segments (the small pool), larger
ones in the large pool. A request takes the smallest free block that fits, and what is left over becomes a free
block of its own. A freed block merges with free neighbours; a segment goes back to the driver only when it is one
whole free block. So a free gigabyte may be out of reach: cut into pieces, each next to a block in use. The methods name
the C++ functions whose decisions they make.

Left out: `record_stream` (so allocated and active bytes are the same number), private pools and CUDA graphs,
several devices, and settings that change while the allocator lives. What others hold is a number that you give.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from labkit.common import format_size

from .settings import MIB, UNLIMITED, Settings

MIN_BLOCK = 512  # kMinBlockSize: every block is a multiple of this
SMALL_SIZE = 1 * MIB  # kSmallSize: the largest request of the small pool
SMALL_SEGMENT = 2 * MIB  # kSmallBuffer
MIN_LARGE_ALLOC = 10 * MIB  # kMinLargeAlloc: from here on a request gets a segment of its own size
ROUND_LARGE = 2 * MIB  # kRoundLarge: ... rounded up to this
OTHER_PROCESS = 1234  # the number that a refusal's text gives to the processes of `others`


@dataclass(slots=True, eq=False, repr=False)
class Block:
    """A run of bytes inside one segment. Once freed it is never handed out again, so a second `free` is noticed."""

    address: int
    size: int  # what it occupies: the request, rounded up
    stream: int
    pool: BlockPool
    segment: Expandable | None = None  # the expandable segment it lies in
    requested_size: int = 0
    allocated: bool = False
    mapped: bool = True  # False: address space of an expandable segment without memory behind it
    prev: Block | None = None  # neighbours in the same segment, by address
    next: Block | None = None
    born: int = 0  # the pool's call count when the block became free (gc_count_base)
    tag: str | None = None  # the caller's label: "parameter", "gradient", "cache", ...
    frames: list[dict[str, Any]] = field(
        default_factory=list
    )  # where it was asked for, if somebody noted it

    def __repr__(self) -> str:
        return f"Block(address={self.address:#x}, size={self.size}, tag={self.tag!r})"

    @property
    def is_split(self) -> bool:
        return self.prev is not None or self.next is not None


@dataclass(slots=True, eq=False)
class Expandable:
    """An expandable segment: much address space, memory mapped into it page by page."""

    address: int
    size: int
    page: int


@dataclass(slots=True, eq=False)
class BlockPool:
    """The free blocks of one kind (small or large), by stream, sorted by size, then address (BlockComparatorSize).

    An entry is `(size, address, block)`. No two have the same address, so a comparison never reaches the block.
    """

    is_small: bool
    free: dict[int, list[Any]] = field(default_factory=dict)  # stream -> entries, ascending
    unmapped: dict[int, dict[int, Block]] = field(
        default_factory=dict
    )  # stream -> address -> block
    calls: int = 0  # get_free_blocks_call_count: the clock of the garbage collector

    def insert(self, block: Block) -> None:
        block.born = self.calls
        entry = (block.size, block.address, block)
        try:
            insort(self.free[block.stream], entry)
        except KeyError:
            self.free[block.stream] = [entry]

    def erase(self, block: Block) -> None:
        entries = self.free[block.stream]
        del entries[bisect_left(entries, (block.size, block.address))]

    def in_order(self) -> list[Block]:
        """Every free block, in C++'s order: stream, size, address."""
        return [entry[2] for stream in sorted(self.free) for entry in self.free[stream]]


@dataclass(eq=False)
class OutOfMemory(RuntimeError):
    """No block, and the driver has no memory left. `str()` is torch 2.13's text; the fields are in bytes."""

    tried: int  # the segment asked of the driver; the message's "Tried to allocate"
    requested: int  # what the caller asked for
    total: int
    free: int  # what the driver has left
    allowed: int | None  # the limit set by a memory fraction
    allocated: int
    reserved: int
    others: int = 0  # held by other processes
    context: int = 0  # held by this process, outside its allocator

    @property
    def unallocated(self) -> int:
        """Reserved, in pieces that could not serve the request."""
        return self.reserved - self.allocated

    def __str__(self) -> str:
        limit = "" if self.allowed is None else f"{format_size(self.allowed)} allowed; "
        # A sentence per process, as NVML tells PyTorch; none where this allocator is the only owner.
        theirs = (
            f"Process {OTHER_PROCESS} has {format_size(self.others)} memory in use. "
            if self.others
            else ""
        )
        mine = format_size(self.reserved + self.context)
        ours = f"Including non-PyTorch memory, this process has {mine} memory in use. "
        processes = theirs + ours if self.others or self.context else ""
        return (
            f"CUDA out of memory. Tried to allocate {format_size(self.tried)}. GPU 0 has a total capacity of "
            f"{format_size(self.total)} of which {format_size(self.free)} is free. {processes}{limit}"
            f"Of the allocated memory {format_size(self.allocated)} is allocated by PyTorch, and "
            f"{format_size(self.unallocated)} is reserved by PyTorch but unallocated. If reserved but unallocated "
            "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
            "See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
            "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with its fields, so that it survives the way out of another process."""
        return partial(OutOfMemory, **asdict(self)), ()


class Allocator:
    """A caching allocator over a device of `total_memory` bytes, with PyTorch's settings string.

        total_memory   bytes of the device
        settings       as in PYTORCH_CUDA_ALLOC_CONF
        others         bytes that other processes hold on it
        context        bytes that this process holds past this allocator: the CUDA context, NCCL, other libraries

    `others` and `context` may change while it lives. PyTorch's statistics are attributes: `allocated_bytes`,
    `reserved_bytes`, `inactive_split_bytes`, `peak_allocated_bytes`, `num_ooms`, ...; and so is `free_bytes`.
    `segments` counts those from cudaMalloc, as in PyTorch.

    Raises: ValueError names a bad size or setting; `OutOfMemory` comes from `malloc`.
    """

    def __init__(
        self, total_memory: int, settings: str = "", *, others: int = 0, context: int = 0
    ) -> None:
        for name, size in (
            ("total_memory", total_memory),
            ("others", others),
            ("context", context),
        ):
            _whole(name, size)
        self.total_memory, self.others, self.context = total_memory, others, context
        self.settings = Settings.parse(settings)
        self.allocated_bytes = self.reserved_bytes = self.inactive_split_bytes = self.segments = 0
        self.num_alloc_retries = self.num_ooms = self.num_device_alloc = self.num_device_free = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self._small, self._large = BlockPool(is_small=True), BlockPool(is_small=False)
        self._active: dict[int, Block] = {}  # address -> block in use
        self._next_address = 0x7F00_0000_0000
        self._expandable, self._max_split = (
            self.settings.expandable_segments,
            self.settings.max_split_size,
        )
        self._rounds_up = any(d > 1 for d in self.settings.roundup_power2_divisions)
        self.set_memory_fraction(self.settings.per_process_memory_fraction)

    def malloc(self, nbytes: int, stream: int = 0, tag: str | None = None) -> Block:
        """A block of at least `nbytes`, from the cache or the driver. `tag` is your label, shown by `snapshot`.

        Zero bytes give an empty block and touch nothing, as in PyTorch.
        Raises: `OutOfMemory`; ValueError when `nbytes` is negative or not a whole number.
        """
        if type(nbytes) is not int or nbytes <= 0:
            _whole("nbytes", nbytes)
            return Block(0, 0, stream, self._small, tag=tag)
        size = self._round_size(nbytes) if self._rounds_up else (nbytes + 511) & -512
        pool = self._small if size <= SMALL_SIZE else self._large
        found = self._get_free_block(pool, stream, size)
        if found is None:
            found = self._new_block(pool, stream, size, nbytes)
        block = self._cut(found, size)
        block.requested_size, block.tag, block.allocated = nbytes, tag, True
        self._active[block.address] = block
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        return block

    def free(self, block: Block) -> None:
        """free_block: back to the cache, merged with its free neighbours. ValueError if it is not in use here."""
        if block.size == 0:
            return
        if self._active.get(block.address) is not block:
            raise ValueError(
                f"free: {block!r} is not in use here: freed twice, or from another Allocator"
            )
        del self._active[block.address]
        block.allocated = False
        self.allocated_bytes -= block.size
        subsumed = self._merge(block)
        block.pool.insert(block)
        if block.segment is None:
            self.inactive_split_bytes += (block.size if block.is_split else 0) - subsumed

    def empty_cache(self) -> None:
        """Return every segment that is one whole free block, and every free page (release_cached_blocks)."""
        for pool in (self._large, self._small):
            expandable = []
            for block in pool.in_order():
                if block.segment is not None:
                    if block.size >= block.segment.page:
                        expandable.append(block)
                elif not block.is_split:
                    self._release_block(block)
            for block in expandable:
                self._unmap(block)

    def set_memory_fraction(self, fraction: float) -> None:
        """Limit what may be reserved to this share of the device, 0 to 1. 1 lifts the limit (not yet in torch 2.6)."""
        if not 0 <= fraction <= 1:
            raise ValueError(
                f"set_memory_fraction: expected a number from 0 to 1, got {fraction!r}"
            )
        self.memory_fraction = fraction
        self._allowed = int(fraction * float(self.total_memory)) if fraction < 1 else None
        self._collects = (
            self._allowed is not None and self.settings.garbage_collection_threshold > 0
        )

    @property
    def free_bytes(self) -> int:
        """What the driver has left: the device, less what is reserved here and what others and this process hold."""
        return max(self.total_memory - self.reserved_bytes - self.others - self.context, 0)

    @property
    def active_bytes(self) -> int:
        """Allocated, plus freed blocks that another stream still uses: none here, so the same as allocated."""
        return self.allocated_bytes

    def reset_peak(self) -> None:
        """Peaks start again from the current values."""
        self.peak_allocated_bytes = self.allocated_bytes
        self.peak_reserved_bytes = self.reserved_bytes

    def snapshot(self) -> list[dict[str, Any]]:
        """The segments in address order, in the shape of `torch.cuda.memory._snapshot()["segments"]`.

        As in PyTorch, a contiguous mapped range of an expandable segment counts as one segment, and a free
        block keeps the requested size of its last use. Extra key of a block: `tag` (None when free).
        """
        everything = [*self._small.in_order(), *self._large.in_order(), *self._active.values()]
        heads = [b for b in everything if b.prev is None or not b.prev.mapped]
        return [_described(head) for head in sorted(heads, key=lambda b: b.address)]

    def _round_size(self, nbytes: int) -> int:
        """round_size: a multiple of 512, or the next of `divisions` steps between powers of two."""
        if nbytes < MIN_BLOCK:
            return MIN_BLOCK
        divisions = self.settings.roundup_power2_divisions
        count = divisions[min(max(nbytes.bit_length() - 21, 0), len(divisions) - 1)]
        if count <= 1 or nbytes <= MIN_BLOCK * count:
            return (nbytes + 511) & -512
        step = (1 << nbytes.bit_length() - 1) // count
        return -(-nbytes // step) * step

    def _segment_size(self, size: int) -> int:
        """get_allocation_size: what is asked of the driver for a request of `size` that no free block can serve."""
        if size <= SMALL_SIZE:
            return SMALL_SEGMENT
        if size < MIN_LARGE_ALLOC:
            return self.settings.large_segment_size
        return in_pages(size, ROUND_LARGE)

    def _get_free_block(self, pool: BlockPool, stream: int, size: int) -> Block | None:
        """get_free_block: the smallest of this stream that fits, taken out of the pool."""
        if self._collects:
            pool.calls += 1
        entries = pool.free.get(stream)
        if not entries:
            return None
        index = bisect_left(entries, (size,))
        if index == len(entries):
            return None
        if self._expandable:
            index = self._least_room(entries, index)
        found = entries[index][0]
        # An oversize block is kept for requests about as large.
        oversize = found >= self._max_split
        if oversize and (
            size < self._max_split or found >= size + self.settings.max_non_split_rounding
        ):
            return None
        return entries.pop(index)[2]

    @staticmethod
    def _least_room(entries: list[Any], index: int) -> int:
        """In expandable segments best fit counts the unmapped space behind a block, into which it could grow."""

        def room(at: int) -> int:
            block = entries[at][2]
            behind = block.next
            return block.size + (behind.size if behind is not None and not behind.mapped else 0)

        while index + 1 < len(entries) and room(index + 1) < room(index):
            index += 1
        return index

    def _cut(self, found: Block, size: int) -> Block:
        """alloc_found_block: the request, off the front of the block found; all of it if too little would be left."""
        pool, after = found.pool, found.next
        block = Block(found.address, size, found.stream, pool, found.segment)
        remaining = found.size - size
        large = size < self._max_split and remaining > SMALL_SIZE
        if remaining >= MIN_BLOCK and (pool.is_small or self._expandable or large):
            if found.segment is None:
                self.inactive_split_bytes += -size if found.is_split else remaining
            found.address += size
            found.size = remaining
            pool.insert(found)
            after = found
        else:
            block.size = found.size
            if found.segment is None and found.is_split:
                self.inactive_split_bytes -= block.size
        _splice(block, found.prev, after)
        return block

    def _merge(self, block: Block) -> int:
        """try_merge_blocks: a block not in use swallows its neighbours in the same state. Returns their bytes."""
        subsumed = 0
        for near in (block.prev, block.next):
            if near is None or near.allocated or near.mapped != block.mapped:
                continue
            if near.mapped:
                near.pool.erase(near)
            else:
                del near.pool.unmapped[near.stream][near.address]
            if near is block.prev:
                block.address = near.address
                _splice(block, near.prev, block.next)
            else:
                _splice(block, block.prev, near.next)
            subsumed += near.size
        block.size += subsumed
        return subsumed

    def _new_block(self, pool: BlockPool, stream: int, size: int, nbytes: int) -> Block:
        """A block of new memory; to make room, first old cached segments go back, then all of the cache."""
        if self._collects:
            self._release(self._garbage())
        segment_size = self._segment_size(size)
        block = self._alloc_block(pool, stream, size, segment_size)
        if block is None:
            released = self._release(self._available(pool, stream, size))
            if released >= max(size, self._max_split):
                block = self._alloc_block(pool, stream, size, segment_size)
        if block is None:
            self.empty_cache()
            self.num_alloc_retries += 1
            block = self._alloc_block(pool, stream, size, segment_size)
        if block is None:
            self.num_ooms += 1
            device = {"total": self.total_memory, "free": self.free_bytes, "others": self.others}
            ours = {
                "allocated": self.allocated_bytes,
                "reserved": self.reserved_bytes,
                "context": self.context,
            }
            raise OutOfMemory(
                tried=segment_size, requested=nbytes, allowed=self._allowed, **device, **ours
            )
        return block

    def _alloc_block(
        self, pool: BlockPool, stream: int, size: int, segment_size: int
    ) -> Block | None:
        """alloc_block: a new segment as one block, or grow an expandable segment. None when it does not fit."""
        if self._allowed is not None and self.reserved_bytes + segment_size > self._allowed:
            return None
        if self._expandable:
            return self._alloc_expandable(pool, stream, size)
        # cudaMalloc: out of memory
        if segment_size > self.free_bytes:
            return None
        block = Block(self._new_address(segment_size), segment_size, stream, pool)
        self.segments += 1
        self.num_device_alloc += 1
        self._reserve(segment_size)
        return block

    def _release_block(self, block: Block) -> None:
        """release_block: cudaFree of a segment that is one whole free block."""
        block.pool.erase(block)
        self.segments -= 1
        self.num_device_free += 1
        self.reserved_bytes -= block.size

    def _release(self, blocks: list[Block]) -> int:
        for block in blocks:
            self._release_block(block)
        return sum(block.size for block in blocks)

    def _reserve(self, size: int) -> None:
        self.reserved_bytes += size
        if self.reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.reserved_bytes

    def _new_address(self, size: int) -> int:
        """Where the driver puts `size` bytes: always above all earlier ones. Addresses break ties between blocks."""
        address = self._next_address
        self._next_address += size
        return address

    def _garbage(self) -> list[Block]:
        """garbage_collect_cached_blocks: over the threshold, the whole free large segments, longest unused first."""
        threshold = int(self.settings.garbage_collection_threshold * float(self._allowed or 0))
        if self._expandable or self.reserved_bytes <= threshold:
            return []
        target = self.reserved_bytes - threshold
        clock = self._large.calls
        whole = [b for b in self._large.in_order() if not b.is_split]
        reclaimed, garbage = 0, []
        while whole and reclaimed < target:
            # A pass takes everything of at least the mean age, also beyond the target: the next one comes later.
            mean_age = sum(clock - b.born for b in whole) / len(whole)
            old = [b for b in whole if clock - b.born >= mean_age]
            whole = [b for b in whole if clock - b.born < mean_age]
            reclaimed += sum(b.size for b in old)
            garbage += old
        return garbage

    def _available(self, pool: BlockPool, stream: int, size: int) -> list[Block]:
        """release_available_cached_blocks: with max_split_size, the oversize block that fits, or the largest ones."""
        if self._max_split == UNLIMITED or self._expandable:
            return []
        needed = max(size, self._max_split)
        entries = pool.free.get(stream, [])
        index = bisect_left(entries, (needed,))
        if index < len(entries):
            return [entries[index][2]]
        released, blocks = 0, []
        for bytes_, _, block in reversed(entries):
            if released >= needed or bytes_ < self._max_split:
                break
            released += bytes_
            blocks.append(block)
        return blocks

    def _alloc_expandable(self, pool: BlockPool, stream: int, size: int) -> Block | None:
        """try_allocate_expandable_block: map pages until a free block is big enough; after a failure they stay."""
        block = self._find_expandable_block(pool, stream, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            # The block behind is unmapped, or the search would have stopped before it; mapped, it swallows this one.
            behind = block.next
            assert behind is not None
            if not self._map(behind, min(size - block.size, behind.size)):
                return None
            block = behind
        pool.erase(block)
        return block

    def _find_expandable_block(self, pool: BlockPool, stream: int, size: int) -> Block:
        """find_expandable_block: the lowest address with `size` bytes free or unmapped behind it, or a new one."""
        unmapped = pool.unmapped.setdefault(stream, {})
        for address in sorted(unmapped):
            start = unmapped[address]
            if start.prev is not None and not start.prev.allocated:
                start = start.prev
            room, block = 0, start
            while room < size and block is not None and not block.allocated:
                room, block = room + block.size, block.next  # type: ignore[assignment]
            if room >= size:
                return start
        page = SMALL_SEGMENT if pool.is_small else self.settings.large_segment_size
        space = in_pages(self.total_memory + self.total_memory // 8, page)
        segment = Expandable(self._new_address(space), space, page)
        block = Block(segment.address, space, stream, pool, segment, mapped=False)
        unmapped[block.address] = block
        return block

    def _map(self, block: Block, size: int) -> bool:
        """map_block: memory behind the first `size` bytes of an unmapped block, in whole pages. False: none is left."""
        pool, segment = block.pool, block.segment
        assert segment is not None
        mapped = in_pages(size, segment.page)
        # cuMemCreate: out of memory; the pages got so far are given back
        if mapped > self.free_bytes:
            return False
        unmapped = pool.unmapped[block.stream]
        del unmapped[block.address]
        block.mapped = True
        if mapped < block.size:
            rest = Block(
                block.address + mapped,
                block.size - mapped,
                block.stream,
                pool,
                segment,
                mapped=False,
            )
            _splice(rest, block, block.next)
            unmapped[rest.address] = rest
            block.size = mapped
        self._merge(block)
        pool.insert(block)
        self.num_device_alloc += 1
        self._reserve(mapped)
        return True

    def _unmap(self, block: Block) -> None:
        """unmap_block: take every whole page of a free block away; drop the segment if nothing is left of it."""
        pool, segment = block.pool, block.segment
        assert segment is not None
        offset = block.address - segment.address
        start = segment.address + in_pages(offset, segment.page)
        end = segment.address + (offset + block.size) // segment.page * segment.page
        if start >= end:
            return
        pool.erase(block)
        if start > block.address:
            head = Block(block.address, start - block.address, block.stream, pool, segment)
            _splice(head, block.prev, block)
            pool.insert(head)
        if end < block.address + block.size:
            tail = Block(end, block.address + block.size - end, block.stream, pool, segment)
            _splice(tail, block, block.next)
            pool.insert(tail)
        block.address, block.size, block.mapped = start, end - start, False
        self._merge(block)
        if block.is_split:
            pool.unmapped[block.stream][block.address] = block
        self.num_device_free += 1
        self.reserved_bytes -= end - start


def _described(head: Block) -> dict[str, Any]:
    """The segment of a snapshot that begins with this block."""
    blocks: list[dict[str, Any]] = []
    block: Block | None = head
    while block is not None and block.mapped:
        state, tag = ("active_allocated", block.tag) if block.allocated else ("inactive", None)
        frames = block.frames if block.allocated else []
        size = {
            "address": block.address,
            "size": block.size,
            "requested_size": block.requested_size,
        }
        blocks.append(size | {"state": state, "frames": frames, "tag": tag})
        block = block.next
    held = [b for b in blocks if b["state"] == "active_allocated"]
    used, asked = (sum(b[name] for b in held) for name in ("size", "requested_size"))
    place = {
        "device": 0,
        "address": head.address,
        "stream": head.stream,
        "segment_pool_id": (0, 0),
        "frames": [],
    }
    kind = {
        "segment_type": "small" if head.pool.is_small else "large",
        "is_expandable": head.segment is not None,
    }
    sizes = {
        "total_size": sum(b["size"] for b in blocks),
        "allocated_size": used,
        "active_size": used,
    }
    return place | kind | sizes | {"requested_size": asked, "blocks": blocks}


def _splice(block: Block, before: Block | None, after: Block | None) -> None:
    block.prev, block.next = before, after
    if before is not None:
        before.next = block
    if after is not None:
        after.prev = block


def in_pages(size: int, page: int) -> int:
    return (size + page - 1) // page * page


def _whole(name: str, value: object) -> None:
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} must be a whole number of bytes, at least 0, got {value!r}")
