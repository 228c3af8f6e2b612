"""What rules see, or None, in the lines that a machine writes when it breaks. The patterns are in rules.toml."""

from __future__ import annotations

from labkit.common import format_size
from labkit.memory.refusal import CANNOT_TELL, TENSORS

from .log import Log, Seen

LOW_SCALE = 64  # of fp16, which begins at 65,536: gradients a thousand times too large


def oom_ranks(log: Log) -> Seen | None:
    """Processes with neighbouring numbers that hold about the same: ranks. The device's own may hold more."""
    held = dict(log.refusal.listed) if log.refusal else {}
    sizes = sorted(held.values())[:-1]
    if len(held) < 3 or max(held) - min(held) > 4 * len(held) + 64 or sizes[-1] > 2 * sizes[0]:
        return None
    numbers = ", ".join(map(str, sorted(held)[:8]))
    return Seen([f"{len(held)} processes with neighbouring numbers on one device: {numbers}"])


def oom_other(log: Log) -> Seen | None:
    """Another owner, by the rules of `labkit.memory.owner`."""
    refusal = log.refusal
    if not refusal or refusal.verdict != "another owner":
        return None
    return Seen([refusal.why])


def oom_room(log: Log) -> Seen | None:
    """So much was free that the card cannot have been full."""
    r = log.refusal
    if r and r.total and r.free and not r.allowed and r.free > 8 * max(r.tried, r.total // 64):
        return Seen([f"{format_size(r.tried)} asked, {format_size(r.free)} of {format_size(r.total)} free"])
    return None


def oom_fragments(log: Log) -> Seen | None:
    """Room enough in pieces, by the rules of `labkit.memory.owner`."""
    refusal = log.refusal
    # nothing is asked of the numbers here: what they say is a matter of the one table
    if not refusal or refusal.verdict != "fragments":
        return None
    return Seen([refusal.why])


def oom_close(log: Log) -> Seen | None:
    """Tensors fill the card, and yet what is unallocated would do for this one request."""
    refusal = log.refusal
    # what is unallocated is under a tenth of the card, else the verdict were "fragments"
    if not refusal or refusal.verdict != TENSORS or refusal.room is None or refusal.unallocated is None:
        return None
    if refusal.tried > refusal.room + refusal.unallocated:
        return None
    asked, loose = format_size(refusal.tried), format_size(refusal.unallocated)
    return Seen([f"{asked} asked for, {loose} reserved and unallocated", refusal.why])


def oom_size(log: Log) -> Seen | None:
    """Neither of the two: what the message says, "possible" where it is cut short."""
    refusal = log.refusal
    if not refusal:
        return Seen([log.told("oom")[0][:160]], "possible") if "oom" in log.hits else None
    asked = format_size(refusal.tried)
    # a request beyond 4 GiB says something, also where the rest is cut off
    seen = [] if refusal.verdict == CANNOT_TELL else [f"{asked} asked for; {refusal.why}"]
    if refusal.tried >= 4 << 30:
        seen.append(f"one tensor of {asked}: full-vocabulary logits, or a mask, of a whole batch")
    return Seen(seen or [f"{asked} asked for; {refusal.why}"], "" if seen else "possible")


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
