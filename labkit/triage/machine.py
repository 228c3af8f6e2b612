"""What rules see, or None, in the lines that a machine writes when it breaks. The patterns are in rules.toml."""

from __future__ import annotations

from labkit.common import format_size

from .log import Log, Seen

FULL, LOOSE = 0.7, 0.2  # shares of the card: so much in live tensors and no more than that loose, and it is simply full
LOW_SCALE = 64  # of fp16, which begins at 65,536: gradients a thousand times too large
ALONE = 3 << 29  # bytes that a small card is short of without any neighbour: contexts, libraries, a screen


def oom_ranks(log: Log) -> Seen | None:
    """Processes with neighbouring numbers that hold about the same: ranks. The device's own may hold more."""
    held = dict(log.refusal.listed) if log.refusal else {}
    sizes = sorted(held.values())[:-1]
    if len(held) < 3 or max(held) - min(held) > 4 * len(held) + 64 or sizes[-1] > 2 * sizes[0]:
        return None
    numbers = ", ".join(map(str, sorted(held)[:8]))
    return Seen([f"{len(held)} processes with neighbouring numbers on one device: {numbers}"])


def oom_other(log: Log) -> Seen | None:
    """Another owner by the rule of `labkit.memory.owner`, or by the processes that the message itself lists."""
    r = log.refusal
    if not r or not r.total or (r.allowed and r.free is not None and r.tried <= r.free):
        return None  # without numbers; or a memory fraction refused, and the card had room
    total, most, others = format_size(r.total), max(r.listed_others, default=0), r.others or 0
    said = log.hits["oom"].groups[0]
    if r.listed and r.free is not None and "own" in said:  # of which libraries and pools of this process are a part
        most = max(most, r.total - r.free - round(float(said["own"]) * 2**30))
    if most > 0.25 * r.total:
        pids = [f"process {pid} holds {format_size(size)}" for pid, size in r.listed]
        return Seen([f"a process that is not this one holds {format_size(most)} of {total}", *pids[:4]])
    loose = (r.unallocated or 0) > max(others, 4 * r.tried)  # more than that could be used again
    return Seen([r.why]) if r.verdict == "another owner" and others > ALONE and not loose else None


def oom_room(log: Log) -> Seen | None:
    """So much was free that the card cannot have been full."""
    r = log.refusal
    if r and r.total and r.free and not r.allowed and r.free > 8 * max(r.tried, r.total // 64):
        return Seen([f"{format_size(r.tried)} asked, {format_size(r.free)} of {format_size(r.total)} free"])
    return None


def oom_fragments(log: Log, full: bool) -> Seen | None:
    """Room enough in pieces, on a card that live tensors fill, or do not."""
    r = log.refusal
    if not r or not r.card or r.unallocated is None or not r.allocated:
        return None
    loose = r.verdict == "fragments" or r.unallocated > max(LOOSE * r.card, 4 * r.tried)
    if not loose or full != (r.allocated >= FULL * r.card and r.unallocated < LOOSE * r.card):
        return None
    return Seen([f"{format_size(r.tried)} asked, {format_size(r.unallocated)} reserved and unallocated", r.why])


def oom_size(log: Log) -> Seen | None:
    r = log.refusal
    if not r:
        return Seen([log.told("oom")[0][:160]], "possible") if "oom" in log.hits else None
    seen = []
    if r.verdict != "cannot be told":
        held, total, more = map(format_size, (r.allocated, r.card, r.tried))
        seen = [f"{held} of {total} are in live tensors, {more} more are asked for"]
    if r.tried >= 4 << 30:
        seen.append(f"one tensor of {format_size(r.tried)}: full-vocabulary logits, or a mask, of a whole batch")
    return Seen(seen or [f"{format_size(r.tried)} asked"], "" if seen else "possible")


def uneven(log: Log) -> Seen | None:
    """A collective that timed out: which ranks waited, for what, and which was elsewhere."""
    hit = log.hits.get("collective")
    if not hit:
        return None
    calls = sorted({(int(g.get("seq", -1)), g.get("rank", "?"), g.get("op", "?")) for g in hit.groups})
    seen = [f"rank {rank} waited in {op}" + f", call {call}" * (call >= 0) for call, rank, op in calls[:4]]
    behind = f"rank {calls[0][1]} is behind, at call {calls[0][0]}: look at what it did, not at the loudest"
    return Seen(seen + [behind] * (calls[0][0] < calls[-1][0]))


def scaler_at_floor(log: Log) -> Seen | None:
    hit = log.hits.get("overflow")
    scales = [float(g.get("scale", g.get("from", "inf"))) for g in hit.groups] if hit else []
    if not hit or not ("scale-floor" in log.hits or min(scales) <= LOW_SCALE):
        return None
    scale = f"{hit.count} skipped steps, loss scale {scales[0]:g} to {scales[-1]:g}"
    return Seen([f"{scale}; line {hit.line}: {hit.text[:120]}"], "" if min(scales) <= 1 else "possible")
