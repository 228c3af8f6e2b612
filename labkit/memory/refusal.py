"""Whose memory is it? Read an out-of-memory message, and go down one table of rules.

    print(owner(error))                  # an exception or a text: of torch 1 or 2, of an engine, of the host
    print(owner(error, held, owned))     # and what was allocated before each step: tells a leak from a run too big

PyTorch counts what it allocated, and what it reserved and did not allocate. The driver counts what is free. What is
missing from the sum is somebody else's: `others = total - free - allocated - unallocated`. The first rule of `RULES`
that holds gives the verdict. A rule whose numbers the message does not have stops the way down: "cannot be told", and
what to measure. A text without such numbers is looked up in `TEXTS`.

Under a memory fraction ("6.00 GiB allowed") that is the card, and only the rest of it is free. The processes that a
message lists count only where it is cut short: in a container they have other numbers, or 0 bytes each. What the rules
make of real messages, and which of these they were tuned on: docs/out-of-memory.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.common import format_size

CONTEXT = 512 << 20  # bytes: what a CUDA context takes, about
OTHERS = 0.2  # of the card: what others hold below this share is contexts, libraries, a screen
PIECES = 0.1  # of the card: what is unallocated below this share, any full card has
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
}
# vLLM's own message, before it allocates anything: what is free, the card, and the share that it wants.
_SHARE = re.compile(
    r"Free memory on device \S* ?\(([\d.]+)/([\d.]+) GiB\).{0,80}?memory utilization \([\d.]+, ([\d.]+) GiB\)"
)

# What a machine writes when the memory of the host ran out, or when its kernel ended a process, which is nearly always
# for that. `labkit.triage` looks for the same lines.
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
    listed: tuple[tuple[int, int], ...] = ()  # the number and the bytes of each process that the message lists

    @property
    def card(self) -> int | None:
        """What of the device this process may use: what a memory fraction allows, or all."""
        return self.allowed or self.total

    @property
    def others(self) -> int | None:
        """On the device, and not in this allocator: other processes, and the CUDA context of this one."""
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
        if self.others is not None:
            return self.others - CONTEXT, self.others - CONTEXT
        used = self.total - (self.free or 0)
        if self.own is not None:  # its context is in it
            most = max(used - self.own, 0)
        elif self.allocated is not None:
            most = max(used - self.allocated - (self.unallocated or 0) - CONTEXT, 0)
        else:
            most = used
        if self.own is not None and self.free is not None:
            return most, most
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
    owned: int | None = None  # bytes of the model, its gradients and the optimizer's state before that step

    @property
    def left_over(self) -> int | None:
        """What was held before the refused step and is not the model's or the optimizer's."""
        if not self.held:
            return None
        if self.owned is not None:
            return self.held[-1] - self.owned
        # Not known: then what was held before step 2 stands for it, with the optimizer's state, which step 1 made.
        return self.held[-1] - self.held[1] if len(self.held) > 2 else None

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
    """What is held before the step, and is not the model's or the optimizer's, is what the request was short of."""
    if case.left_over is None:
        return False  # one message says nothing of it
    if case.short is None:
        return None
    if case.short <= 0:  # the free memory would have done: nothing was too little
        return False
    return case.left_over >= case.short


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
    large = [f"process {number} holds {size(held)}" for number, held in numbers.listed if held > least / 4]
    if large:
        whose += f" ({', '.join(large)})"
    lacked = (numbers.tried or 0) - (numbers.free or 0)
    if lacked <= 0:
        return f"{whose}, and more is free now than was asked for"
    return f"{whose}, and the request is {size(lacked)} short"


def why_leak(case: Case) -> str:
    what = "held before the step, and neither the model's nor the optimizer's"
    if case.owned is None:
        what = "held before a step since step 2"
    return f"{what}: {size(case.left_over)} more, and the request was {size(case.short)} short"


def why_pieces(case: Case) -> str:
    numbers = case.numbers
    parts = f"{size(numbers.room)} free and {size(numbers.unallocated)} reserved and unallocated"
    return f"{parts} are enough for {size(numbers.tried)}, but in pieces"


def why_early(case: Case) -> str:
    return f"step {len(case.held)} was refused; {why_full(case)}"


def why_later(case: Case) -> str:
    """What was left over need not be nothing: it is only less than the request was short of."""
    left_over = max(case.left_over or 0, 0)
    return f"step {len(case.held)} asked for more than those before; only {size(left_over)} were left over from them"


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
    return f"{size(numbers.allocated)} are in tensors; {lack}"


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
        "the memory of the machine ran out, not that of the card, or its kernel ended the process, nearly always so",
        "dmesg | grep -i oom; host memory over time: offload, copies of the model, data in the workers",
    ),
    Text(
        DRIVER,
        CANNOT_TELL,
        "the driver's own message has no numbers",
        "print torch.cuda.mem_get_info() and torch.cuda.memory_summary() just before that line, and nvidia-smi",
    ),
)


def owner(message: object, held: Sequence[int] | None = None, owned: int | None = None) -> Refusal:
    """Whose memory was in the way of a request.

        message  an exception, or a text with its words, a whole traceback too; of several messages the first counts
        held     bytes allocated before each training step, the refused one included
        owned    bytes of the model, its gradients and the optimizer's state before that step: see `owned`. Without it,
                 what was held before step 2 stands for it

    Raises: ValueError names what is no out-of-memory message.
    Source: the words of `DeviceCachingAllocator::malloc` in c10/cuda/CUDACachingAllocator.cpp.
    """
    text = str(message)
    numbers = read(text)
    if numbers is None:
        return _by_its_words(text)
    case = Case(numbers, tuple(held or ()), owned)
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
