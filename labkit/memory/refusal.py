"""Whose memory is it? Read an out-of-memory message, and go down one table of rules.

    print(owner(error))                  # an exception or a text: of torch 1 or 2, of an engine, of the host
    print(owner(error, held, owned))     # and what was allocated and owned before each step: tells a leak too

PyTorch counts what it allocated, and what it reserved and did not allocate. The driver counts what is free and, in
newer messages, what this process has, its CUDA context included. What is missing from the sum is somebody else's.
Where the message does not say what this process has, half a GiB stands for the context. The first rule of `RULES` that
holds gives the verdict. A rule whose numbers the message does not have stops the way down: "cannot be told", and what
to measure. A text without such numbers is looked up in `TEXTS`.

A leak is growth: what is held before a step, beyond what model and optimizer own, and more from step to step. What is
there all the time is no leak, however large: a reference model, an engine in this process, DDP's buckets.

Under a memory fraction ("6.00 GiB allowed") that is the card, and only the rest of it is free. The processes that a
message lists count where they and what is free add up to the card, or where it is cut short: in a container they may
have 0 bytes each. What the rules make of real messages, and which of these they were tuned on: docs/out-of-memory.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from labkit.common import format_size

CONTEXT = 512 << 20  # bytes: what a CUDA context takes, about, where the message does not say what this process has
OTHERS = 0.2  # of the card: what others hold below this share is contexts, libraries, a screen
PIECES = 0.1  # of the card: what is unallocated below this share, any full card has
GROWTH = 64 << 20  # bytes: what is held may change by so much from step to step: batches, a library's workspace
RISES = 2  # so many steps in a row, each with more held than before it by that: it rises
CANNOT_TELL = "cannot be told"

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = r"([\d.]+) (bytes|[KMG]iB)"
_MESSAGE = re.compile(r"out of memory\. Tried to allocate(?:(?!out of memory).)*", re.IGNORECASE)
# What stands around each number: in torch 2.1 and later ("capacty" in 2.0 and 2.1), and before.
_WORDINGS = {
    "tried": ["Tried to allocate SIZE"],
    "total": ["total capaci?ty of SIZE", "SIZE total capacity"],
    "free": ["of which SIZE", "SIZE free;"],
    "allowed": ["SIZE allowed;"],
    "allocated": ["SIZE is allocated by PyTorch", "SIZE already allocated"],
    "unallocated": ["SIZE is reserved by PyTorch but unallocated", "SIZE cached"],
    "reserved": ["SIZE reserved in total by PyTorch"],
    "own": ["this process has SIZE"],
    "pools": ["with SIZE allocated in private pools"],
}
# vLLM's own message, before it allocates anything: what is free, the card, and the share that it wants.
_SHARE = re.compile(
    r"Free memory on device \S* ?\(([\d.]+)/([\d.]+) GiB\).{0,80}?memory utilization \([\d.]+, ([\d.]+) GiB\)"
)

# What a machine writes when the memory of the host ran out, or when somebody ended a process with SIGKILL: most often
# its kernel, for that reason. `labkit.triage` looks for the same lines.
HOST = (
    "ray-oom-prevention",
    "RAY_memory_usage_threshold",
    "exceeds the memory usage threshold",
    "running low on memory",
    "SIGKILL by OOM killer",
    r"exitcode\s*:\s*-9\b",
    r"Signal 9 \(SIGKILL\)",
    "[Oo]om-kill",
    "killed due to memory pressure",
    "oom_kill event",
    "OOM Killed",
    r"task \d+: Out Of Memory",
    r"(?:^|\s)Killed(?:\s*$|  )",
    r"exit code:? (?:137|-9)\b",
    r"exited with code:? (?:137|-9)\b",
    r"return code = -9\b",
)
# An engine's pool of its own that found no memory, most often as it wakes up beside a trainer.
POOL = (r"out of memory at .{0,40}cumem_allocator", r"CUresult error.{0,20}result=2\b")
DRIVER = (r"CUDA (?:driver )?[Ee]rror: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


@dataclass(frozen=True)
class Numbers:
    """What a message says, in bytes. None: it is cut short there, or is no message of PyTorch's allocator."""

    tried: int | None = None
    total: int | None = None
    free: int | None = None
    allocated: int | None = None
    unallocated: int | None = None  # reserved by PyTorch, and in no tensor
    allowed: int | None = None  # under a memory fraction: what it leaves this process
    own: int | None = None  # what the driver counts for this process, its CUDA context and libraries included
    pools: int | None = None  # of allocated: free blocks in private pools, which nothing but their pool may use
    listed: tuple[tuple[int, int], ...] = ()  # the number and the bytes of each process that the message lists

    @property
    def card(self) -> int | None:
        """What of the device this process may use: what a memory fraction allows, or all."""
        return self.allowed or self.total

    @property
    def others(self) -> int | None:
        """On the device, and not in this allocator: other processes, and the CUDA context of this one.

        `foreign` is that without the context.
        """
        if self.total is None or self.free is None:
            return None
        if self.allocated is None or self.unallocated is None:
            return None
        return max(self.total - self.free - self.allocated - self.unallocated, 0)

    @property
    def listed_others(self) -> list[int]:
        """What the listed processes hold, without the one whose size is nearest to what this allocator has.

        In a message that is cut short the largest is as likely this process as any. Where the message has a sentence
        on this process, none of the others is.
        """
        sizes = sorted(size for _, size in self.listed)
        ours = self.allocated
        if self.own is not None:
            return sizes
        if ours is None:
            return sizes[:-1]
        nearest = min(sizes, key=lambda size: abs(size - ours), default=None)
        return [size for size in sizes if size != nearest]

    @property
    def this_process(self) -> int | None:
        """What the driver counts for this process, where the message says it: in a sentence, or in its list.

        In a container the list has every process by a number, this one too; then it and what is free are the card.
        """
        if self.own is not None:
            return self.own
        sizes = [size for _, size in self.listed]
        if self.total is None or self.free is None or self.allocated is None or not sizes:
            return None
        if abs(sum(sizes) + self.free - self.total) > self.total // 50:
            return None
        return sum(sizes) - sum(self.listed_others)

    @property
    def room(self) -> int | None:
        """What the allocator could still ask the device for."""
        if self.free is None or self.allowed is None or self.allocated is None:
            return self.free
        left = self.allowed - self.allocated - (self.unallocated or 0)
        return min(self.free, max(left, 0))

    # A message may be cut short anywhere, and still bound what it does not say. The next two say from where to where.

    @property
    def foreign(self) -> tuple[int, int] | None:
        """What is certainly somebody else's, and what may be at most. None: the message does not name the card."""
        if self.total is None:
            return None
        ours = self.this_process
        if ours is not None and self.free is not None:
            theirs = max(self.total - self.free - ours, 0)
            if self.allocated is not None and self.unallocated is not None:
                # past PyTorch in this process: a context, and beyond that an engine's own allocator
                theirs += max(ours - self.allocated - self.unallocated - CONTEXT, 0)
            return theirs, theirs
        if self.others is not None:
            return self.others - CONTEXT, self.others - CONTEXT
        used = self.total - (self.free or 0)
        if self.own is not None:  # its context is in it
            most = max(used - self.own, 0)
        elif self.allocated is not None:
            most = max(used - self.allocated - (self.unallocated or 0) - CONTEXT, 0)
        else:
            most = used
        return min(sum(self.listed_others), most), most

    @property
    def loose(self) -> tuple[int, int] | None:
        """What is certainly reserved and unallocated, and what may be at most."""
        if self.unallocated is not None:
            return self.unallocated, self.unallocated
        if self.total is None:
            return None
        most = self.total - (self.free or 0)
        if self.own is not None:
            most = min(most, self.own)
        return 0, max(most - (self.allocated or 0), 0)


@dataclass(frozen=True)
class Refusal(Numbers):
    """What an out-of-memory message says, whose memory it is, and what to do or to measure next."""

    verdict: str = CANNOT_TELL
    why: str = ""
    next: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.why}\nNext: {self.next}"


@dataclass(frozen=True)
class Case:
    """A message's numbers, and what is known of the steps before."""

    numbers: Numbers
    held: Sequence[int] = ()  # bytes allocated before each step, the refused one included
    owned: Sequence[int] = ()  # bytes of the model, its gradients and the optimizer's state before each of them

    @property
    def beside(self) -> list[int]:
        """What was held before each step, less what the model and the optimizer owned then, if that is known."""
        if not self.owned:
            return list(self.held)
        return [held - owned for held, owned in zip(self.held, self.owned, strict=True)]

    @property
    def grown(self) -> int:
        """By how much that grew: since the first step if it rises now, else in the second half of the steps.

        What the first steps make and then keep lies in the first half. Without `owned` the first step does not count:
        it makes the optimizer's state.
        """
        beside, steps = self.beside, len(self.held)
        if steps < 3:
            return 0
        first = 0 if self.owned else 1
        rises = [after - before for before, after in pairwise(beside[first:])][-RISES:]
        if len(rises) == RISES and min(rises) >= GROWTH:
            return beside[-1] - beside[first]
        return beside[-1] - beside[max(steps // 2, 1)]

    @property
    def resident(self) -> int:
        """What is there before each step from the second on, and is not owned; 0 where that is not known."""
        return max(min(self.beside[1:], default=0), 0) if self.owned else 0

    @property
    def short(self) -> int | None:
        """What the device lacked."""
        numbers = self.numbers
        if numbers.tried is None or numbers.room is None:
            return None
        return numbers.tried - numbers.room


# ---- the rules: each says True, False, or None where the message lacks its numbers


def somebody_elses(case: Case) -> bool | None:
    """Others hold over a fifth of the card, and more than the request was short of."""
    numbers = case.numbers
    tried, total, free = numbers.tried, numbers.total, numbers.free
    if tried is None or total is None or numbers.foreign is None:
        return None
    if tried > total:  # nobody's leaving would help
        return False
    if numbers.allowed is not None and free is not None and tried <= free:  # the fraction refused, not the device
        return False
    least, most = numbers.foreign
    lacked = tried - (free or 0)
    if least > OTHERS * total and least > lacked:
        return True
    # Even at most it is too little: decided, whatever the message leaves out.
    if most <= OTHERS * total or (free is not None and most <= lacked):
        return False
    return None


def left_by_earlier_steps(case: Case) -> bool | None:
    """What is held beyond what is owned grew by what the request was short of, and by more than steps differ."""
    if case.grown < GROWTH:
        return False  # one message says nothing of it
    if case.short is None:
        return None
    if case.short <= 0:  # the free memory would have done: nothing was too little
        return False
    return case.grown >= case.short


def in_private_pools(case: Case) -> bool | None:
    """The request would fit with the free blocks of private pools, and these are over a tenth of the card.

    The message counts them as allocated. A message that ends just before it names them is read as if there were none.
    """
    numbers = case.numbers
    if numbers.pools is None or numbers.tried is None or numbers.card is None or numbers.room is None:
        return False
    free = numbers.room + numbers.pools + (numbers.unallocated or 0)
    return numbers.pools > PIECES * numbers.card and numbers.tried <= free


def in_pieces(case: Case) -> bool | None:
    """The request would fit into what is free or unallocated, and unallocated is over a tenth of the card."""
    numbers = case.numbers
    tried, card, room = numbers.tried, numbers.card, numbers.room
    if tried is None or card is None or numbers.loose is None:
        return None
    least, most = numbers.loose
    if most <= PIECES * card or tried > (numbers.total or card):
        return False
    if room is not None and tried > room + most:
        return False
    if (numbers.allocated or 0) + least > card:  # Windows lends host memory: the sum says nothing
        return False
    if room is not None and least == most:
        return True
    return None


def early(case: Case) -> bool | None:
    """It was the first or the second step.

    AdamW's state comes at the end of the first, so a run that is too big may get through that one, and dies in the
    second. False, too, where the steps before are not known.
    """
    return 0 < len(case.held) <= 2


def later(case: Case) -> bool | None:
    """Two steps at least had gone through, and no rule above holds: then this step needed more than those."""
    return len(case.held) > 2


# ---- why a rule holds, in words


def size(number: int | None) -> str:
    """A number of bytes in words. Only where a rule holds is it asked why, so the numbers that it needs are there."""
    return format_size(number or 0)


def why_others(case: Case) -> str:
    numbers = case.numbers
    least, _ = numbers.foreign or (0, 0)
    whose = f"{size(least)} of {size(numbers.total)} are somebody else's"
    theirs = numbers.listed_others
    large = [f"process {n} holds {size(held)}" for n, held in numbers.listed if held in theirs and held > least / 4]
    if large:
        whose += f" ({', '.join(large)})"
    lacked = (numbers.tried or 0) - (numbers.free or 0)
    if lacked <= 0:
        return f"{whose}, and more is free now than was asked for"
    return f"{whose}, and the request is {size(lacked)} short"


def why_leak(case: Case) -> str:
    what = "held before the step, and neither the model's nor the optimizer's"
    if not case.owned:
        what = "held before the step"
    return f"{what}: {size(case.grown)} more than before, and the request was {size(case.short)} short"


def why_pieces(case: Case) -> str:
    numbers = case.numbers
    parts = f"{size(numbers.room)} free and {size(numbers.unallocated)} reserved and unallocated"
    return f"{parts} are enough for {size(numbers.tried)}, but in pieces{why_beside(case)}"


def why_pools(case: Case) -> str:
    return f"{size(case.numbers.pools)} of what is called allocated are free blocks of private pools"


def why_early(case: Case) -> str:
    return f"step {len(case.held)} was refused; {why_full(case)}{why_beside(case)}"


def why_later(case: Case) -> str:
    """It may have grown a little: only by less than the request was short of."""
    grown = size(max(case.grown, 0))
    steps = f"step {len(case.held)} was refused and those before were not: probably it asked for more"
    return f"{steps}; what is held grew by {grown}{why_beside(case)}"


def why_beside(case: Case) -> str:
    """What lives on the card beside the model and the optimizer, if that is much."""
    if case.resident < GROWTH:
        return ""
    what = f"; something else lives here, {size(case.resident)}: a reference model, buffers, an engine"
    what += " (then a lower vllm_gpu_memory_utilization or its sleep mode helps, too)"
    if len(case.held) == 2:
        what += ", or a leak of one step: log more of them"
    return what


def why_full(case: Case) -> str:
    numbers = case.numbers
    tried, loose = numbers.tried or 0, numbers.unallocated or 0
    if numbers.allocated is None:
        return f"{size(tried)} of {size(numbers.total)} asked for, and nobody else is in the way"
    rest = (numbers.room or 0) + loose
    if numbers.card is not None and numbers.allocated + loose > numbers.card:
        lack = "with what is unallocated that is more than the card: this machine lends it memory of the host"
    elif tried > rest:
        lack = f"what is left, {size(rest)}, is {size(tried - rest)} short"
    else:
        lack = f"the {size(loose)} unallocated would do for this request, but any full card has such"
    return f"{size(numbers.allocated - (numbers.pools or 0))} are in tensors; {lack}"


@dataclass(frozen=True)
class Rule:
    """A row of the table."""

    verdict: str
    holds: Callable[[Case], bool | None]
    why: Callable[[Case], str]
    next: str  # where it holds
    measure: str = ""  # where the message lacks its numbers


# One message does not tell these two apart: that needs what was held before each step.
TENSORS = "references, or simply too big"
# From the top down. Others come first, because no change of one's own program helps against them; a leak before
# fragments, because a leaking run's card is in pieces too when it dies.
RULES = (
    Rule(
        "another owner",
        somebody_elses,
        why_others,
        "nvidia-smi on that machine: which pids, and how much each. An engine, another rank, a notebook left open?",
        "the whole message, or nvidia-smi while it runs: what this process has, and what others have",
    ),
    Rule(
        "a leak",
        left_by_earlier_steps,
        why_leak,
        "find who refers to it: labkit.memory.holders(model, optimizer) between two steps, as in lesson 05",
        "what was free when it was refused",
    ),
    Rule(
        "fragments",
        in_private_pools,
        why_pools,
        "which pools: an engine's sleep mode, CUDA graphs. The allocator's settings do not reach them",
    ),
    Rule(
        "fragments",
        in_pieces,
        why_pieces,
        "prove that expandable_segments:True is in force (memory.allocator_settings()), and run again: lesson 07",
        "the whole message: how much is allocated, and how much is reserved and unallocated",
    ),
    Rule("too big at once", early, why_early, "halve the rows of one piece, or shard: what the step needs, lesson 11"),
    Rule(
        "a longer batch",
        later,
        why_later,
        "the lengths of that batch against those before; bound the tokens of one piece: lesson 11",
    ),
    Rule(
        TENSORS,
        lambda case: True,
        why_full,
        "log torch.cuda.memory_allocated() and memory.owned(model, optimizer) before every step: a leak, or too big",
    ),
)


@dataclass(frozen=True)
class Text:
    """What is known of a message by its words alone: it has none of the allocator's numbers."""

    patterns: tuple[str, ...]  # regular expressions; one that is found is enough
    verdict: str
    why: str
    next: str  # what to do, or to measure


TEXTS = (
    Text(
        POOL,
        "another owner",
        "an engine's own pool found no memory; most often it wakes up, and the trainer has kept what it had given back",
        "print torch.cuda.mem_get_info() just before the engine wakes; empty the trainer's cache there",
    ),
    Text(
        HOST,
        "host memory",
        "the memory of the machine ran out, not that of the card; a bare SIGKILL (-9, 137) may have another sender too",
        "dmesg | grep -i oom; host memory over time: offload, copies of the model, data in the workers",
    ),
    Text(
        DRIVER,
        CANNOT_TELL,
        "the driver's own message has no numbers",
        "nvidia-smi first: on a full card a CUDA context alone may fail, and so does every print that needs one",
    ),
)


def owner(message: object, held: Sequence[int] | None = None, owned: Sequence[int] | None = None) -> Refusal:
    """Whose memory was in the way of a request.

        message  an exception, or a text with its words, a whole traceback too; of several messages the first counts
        held     bytes allocated before each training step, the refused one included
        owned    bytes of the model, its gradients and the optimizer's state before each of them: see `owned`. Without
                 it, what is held from step 2 on is looked at as it is

    A leak shows between steps, and not where a step keeps too much until its end: `torch.cuda.memory`'s snapshot does.

    Raises: ValueError names what is no out-of-memory message, or lists of two lengths.
    Source: the words of `DeviceCachingAllocator::malloc` in c10/cuda/CUDACachingAllocator.cpp.
    """
    text = str(message)
    numbers = read(text)
    if numbers is None:
        return _by_its_words(text)
    if owned is not None and len(owned) != len(held or ()):
        raise ValueError(f"owner: held has {len(held or ())} steps and owned {len(owned)}; expected one of each a step")
    case = Case(numbers, tuple(held or ()), tuple(owned or ()))
    for rule in RULES:
        answer = rule.holds(case)
        if answer:
            return Refusal(**vars(numbers), verdict=rule.verdict, why=rule.why(case), next=rule.next)
        if answer is None:
            why = f"the message is cut short and does not say: {_missing(numbers)}"
            return Refusal(**vars(numbers), verdict=CANNOT_TELL, why=why, next=rule.measure)
    raise AssertionError("the last rule always holds")


def read(text: str) -> Numbers | None:
    """The numbers of the first message in a text; None where it has none."""
    words = " ".join(text.split())
    share = _SHARE.search(words)
    message = _MESSAGE.search(words)
    if message is None and share is None:
        return None
    if share is not None and (message is None or share.start() < message.start()):
        free, total, wanted = (round(float(number) * _UNITS["GiB"]) for number in share.groups())
        return Numbers(tried=wanted, total=total, free=free, own=0)
    sizes = _sizes(message[0]) if message else {}
    if "tried" not in sizes:
        return None
    return Numbers(**sizes)


def _by_its_words(text: str) -> Refusal:
    for known in TEXTS:
        if re.search("|".join(known.patterns), text, re.MULTILINE):
            return Refusal(verdict=known.verdict, why=known.why, next=known.next)
    raise ValueError(
        f"owner: {text[:80]!r} is no message of an allocator that ran out; "
        "expected '... out of memory. Tried to allocate 2.00 GiB ...'"
    )


def _missing(numbers: Numbers) -> str:
    names = ("total", "free", "allocated", "unallocated")
    return ", ".join(name for name in names if getattr(numbers, name) is None)


def _sizes(message: str) -> dict[str, Any]:
    """The numbers of one message, in bytes, by the names of `Numbers`."""
    sizes: dict[str, Any] = {}
    for name, wordings in _WORDINGS.items():
        size = re.search("|".join(wordings).replace("SIZE", _SIZE), message)
        if size:
            amount, unit = filter(None, size.groups())
            sizes[name] = round(float(amount) * _UNITS[unit])
    if sizes.get("own") == 0:  # in a container the driver knows this process by another number, and says 0 bytes
        del sizes["own"]
    processes = re.findall(rf"Process (\d+) has {_SIZE}", message)
    sizes["listed"] = tuple((int(number), round(float(amount) * _UNITS[unit])) for number, amount, unit in processes)
    reserved = sizes.pop("reserved", None)
    if reserved is not None and "allocated" in sizes:
        sizes["unallocated"] = max(reserved - sizes["allocated"], 0)
    return sizes
