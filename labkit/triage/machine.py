"""What rules see in the lines that a machine writes when it breaks: out-of-memory messages, asserts, collectives.

Each function answers None, or what it saw. The patterns are in rules.toml.
"""

from __future__ import annotations

import itertools
import re

from labkit.common import format_size, number

from .log import Log, Seen

FULL = 0.7  # of the card in live tensors: the next request fails, too, whatever is loose now
ALONE = 3 << 29  # bytes that a small card is short of without any neighbour: contexts, libraries, a screen
_PROCESS = re.compile(r"Process (\d+) has ([\d.]+) (GiB|MiB|bytes)")


def oom_ranks(log: Log) -> Seen | None:
    """Processes with neighbouring numbers that hold about the same: ranks. The device's own may hold more."""
    held = {found[1]: _bytes(found, 2) for text in log.told("oom") for found in _PROCESS.finditer(text)}
    if len(held) < 3 or max(map(int, held)) - min(map(int, held)) > 4 * len(held) + 64:
        return None
    sizes = sorted(held.values())[:-1]
    if sizes[-1] > 2 * sizes[0]:
        return None
    return Seen([f"{len(held)} processes with neighbouring numbers on one device: {', '.join(sorted(held)[:8])}"])


def oom_other(log: Log) -> Seen | None:
    """Another owner by the rule of `labkit.memory.owner`, or by the processes that the message itself lists."""
    r, texts, seen = log.refusal, log.told("oom"), ""
    if r and r.free is not None and r.tried <= r.free and " allowed; " in " ".join(texts):
        return None  # a memory fraction refused, the card had room
    total = r.total if r and r.total else 0
    most = max((size for text in texts for size in _others(text)), default=0)
    if total and most > 0.25 * total:
        seen = f"a process that is not this one holds {format_size(most)} of {format_size(total)}"
    elif r and r.others and not re.search(r"rocess.{0,9} has", " ".join(texts)) and r.others > max(total / 4, ALONE):
        seen = f"{format_size(r.others)} of {format_size(total)} are neither free nor this process's"
    if r and r.verdict == "another owner" and r.others > ALONE:
        seen = seen or r.why
    return Seen([seen]) if seen else None


def _others(text: str) -> list[int]:
    """What the processes hold that a message lists beside its own, in bytes."""
    listed = [_bytes(found, 2) for found in _PROCESS.finditer(text)]
    if "this process has" in text:
        return listed
    own = re.search(r"Of the allocated memory ([\d.]+) (GiB|MiB)", text)
    if not own:  # cut short: one of those listed is this one, the largest as likely as any
        return sorted(listed)[:-1] if len(listed) > 1 else []
    mine = min(listed, key=lambda size: abs(size - _bytes(own)), default=0)
    return [size for size in listed if size != mine]


def oom_fragments(log: Log, full: bool) -> Seen | None:
    """Room enough in pieces, on a card that live tensors fill, or do not."""
    r = log.refusal
    if not r or r.verdict != "fragments" or (r.allocated >= FULL * r.total) != full:
        return None
    asked = f"{format_size(r.tried)} asked, " if r.tried else ""  # a message that was cut short may not say it
    return Seen([f"{asked}{format_size(r.unallocated)} reserved and unallocated", r.why])


def oom_size(log: Log) -> Seen | None:
    texts = log.told("oom")
    if not texts:
        return None
    r, seen = log.refusal, []
    if r and r.verdict != "cannot be told":
        held, total, more = map(format_size, (r.allocated, r.total, r.tried))
        borrows = f"{held} allocated on a card of {total}: it borrows from the host"
        fills = f"{held} of {total} are in live tensors, {more} more are asked for"
        seen = [borrows if r.allocated > r.total else fills]
    found = re.search(r"ried to allocate ([\d.]+) (GiB|MiB)", " ".join(texts))
    tried = r.tried if r else _bytes(found) if found else 0
    if tried and tried >= 4 << 30:
        seen.append(f"one tensor of {format_size(tried)}: full-vocabulary logits, or a mask, of a whole batch")
    return Seen(seen or [f"{format_size(tried)} asked"] if tried else [texts[0][:160]], "" if seen else "possible")


def _bytes(found: re.Match[str], at: int = 1) -> int:
    return round(float(found[at]) * {"GiB": 1 << 30, "MiB": 1 << 20, "bytes": 1}[found[at + 1]])


def share(log: Log, near: bool) -> Seen | None:
    """The engine's share is larger than what is free: by little, or by more than a twentieth of the card."""
    hit = log.hits.get("vllm-share")
    if not hit:
        return None
    free, total, wanted = (float(hit.groups[0][name]) for name in ("free", "total", "wanted"))
    if (wanted - free <= 0.05 * total) != near:
        return None
    return Seen([f"{free} of {total} GiB are free, {wanted} are asked for: {wanted - free:.2f} GiB short"])


def uneven(log: Log) -> Seen | None:
    """A collective that timed out: which ranks waited, for what, and which was elsewhere."""
    hit = log.hits.get("collective")
    if not hit:
        return None
    calls = [(g.get("rank", "?"), int(g.get("seq", -1)), g.get("op", "?")) for g in hit.groups]
    seen = [f"rank {rank} waited in {op}, call {seq}" for rank, seq, op in sorted(set(calls))[:4]]
    if len({seq for _, seq, _ in calls}) > 1:
        behind = min(calls, key=lambda call: call[1])
        seen.append(f"rank {behind[0]} is behind, at call {behind[1]}: look at what it did, not at the loudest")
    return Seen(seen)


def divisible(log: Log, of: str) -> Seen | None:
    """The batch does not divide into groups; the numbers of the message show of what."""
    hit = log.hits.get("divisible")
    if not hit:
        return None
    processes, batch, group = (int(hit.groups[0].get(name) or 1) for name in ("processes", "batch", "group"))
    if of != ("a group of one" if group < 2 else "several processes" if processes > 1 else "one process"):
        return None
    return Seen([f"{processes} x {batch} completions in groups of {group}: {hit.text[:160]}"])


def raised_in_reward(log: Log) -> Seen | None:
    """A traceback whose last frames are in a reward function."""
    frames, error = log.hits.get("reward-frames"), log.hits.get("error")
    if not frames or not error or not 0 <= error.line - frames.line <= 16 or "Timeout" in error.text:
        return None
    return Seen([f"line {frames.line}: {frames.text[:120]}", f"line {error.line}: {error.text[:120]}"])


def scaler_at_floor(log: Log) -> Seen | None:
    hit = log.hits.get("overflow")
    scales = [float(g.get("scale", g.get("from", "inf"))) for g in hit.groups] if hit else []
    if not hit or not ("scale-floor" in log.hits or (scales and min(scales) <= 1)):
        return None
    seen = [f"{hit.count} skipped steps; line {hit.line}: {hit.text[:120]}"]
    if scales:
        seen.append(f"loss scale {scales[0]:g} at first, {scales[-1]:g} at last")
    return Seen(seen)


def asleep_and_growing(log: Log) -> Seen | None:
    """What an engine in sleep mode still holds, more each time."""
    held = [float(group["held"]) for group in log.hits["sleep"].groups] if "sleep" in log.hits else []
    if len(held) < 3 or any(b < a for a, b in itertools.pairwise(held)) or held[-1] < 1.5 * held[0]:
        return None
    return Seen([f"in use while the engine sleeps: {', '.join(map(number, held[:6]))} GiB"])
