"""Is a function a rotary position embedding: a rotation by the position, in every dtype, and far out too?

It is told neither how the dims are paired, nor the sign, nor the base: it asks for what all sound ones have in common.
It builds no model and judges no attention. Which positions a trainer hands over is the trainer's business.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.common import number

from .mistakes import first
from .report import CannotJudge, Caution, Inconclusive, Raised, Report, attempt, judged, parameters_of, tensor_of

CLAIM = "a rotation by the position, in every dtype and at large positions"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HEADS, SAME = 4, 3  # the first three heads hold one vector at all positions, the last another at each
WINDOW, LEAST = 128, 256  # positions
NAMES = ("q", "k")
ANGLES = (
    "Likely positions, frequencies or angles are kept in 16 bits: compute angles in float32, then cast cos and sin, or "
    "the result."
)


def rotary(
    apply: Callable[..., Any],
    *,
    head_dim: int = 64,
    length: int = 8192,
    rotary_dim: int | None = None,
    scale: float = 1.0,
    dtypes: Sequence[torch.dtype] = DTYPES,
) -> Report:
    """Check `apply(x, positions)`, which must return x rotated, or `apply(q, k, positions)`, which must return both.

        x, q, k      [B, H, T, head_dim], as transformers' attention and `scaled_dot_product_attention` have them
        positions    [B, T] whole numbers in a row, from 0, or from where a cache ends
        head_dim     must fit the function's tables
        length       positions 0 to length - 1 are tried; at least 256
        rotary_dim   how many dims rotate. None: all, or, with a caution, only the first ones (partial rotary)
        scale        what the rotated dims are multiplied by: YaRN's attention factor, `rope.attention_scaling`
        dtypes       those of float32, bfloat16 and float16 that your code runs in

    Asked in each dtype: it is kept; position 0 leaves x as it is; vectors keep their length; the score of q and k
    depends on their distance only; a 16-bit result is within 4 roundings of the function's own float64 (or float32)
    one, near and far; a few tokens alone, as after a cache, are rotated as in the whole sequence. Any base, either sign
    and any pairing will do, and another order of the dims, if q and k share it. Counting from another position than 0
    is refused: scores bear it, the next reader of the cache does not.

    Most code needs a lambda. `rope` is a model's RotaryEmbedding; without `k`, one function serves q and k:

        Llama, Qwen, GPT-NeoX     lambda q, k, p: apply_rotary_pos_emb(q, k, *rope(q, p))
        tables, x [B, T, H, D]    lambda x, p: rotate(x.transpose(1, 2), cos[:, p[0]], sin[:, p[0]]).transpose(1, 2)
        a start, no positions     lambda x, p: rotate(x, start=int(p[0, 0]))

    Raises: ValueError names a head_dim, length, rotary_dim, scale or dtypes that cannot be.
    """
    wrong = {
        f"head_dim = {head_dim}: expected an even number": head_dim < 2 or head_dim % 2,
        f"length = {length}: expected {LEAST} or more, to see what rounded angles do": length < LEAST,
        f"rotary_dim = {rotary_dim}: expected 2 to {head_dim}": rotary_dim and not 2 <= rotary_dim <= head_dim,
        f"scale = {scale}: must be above 0": not scale > 0,
        f"dtypes = {dtypes}: expected some of {DTYPES}": not dtypes or not {*dtypes} <= {*DTYPES},
    }
    if said := first(wrong):
        raise ValueError(f"rotary: {said}")
    probe = _Probe(apply, head_dim, length, rotary_dim, scale, sorted(dtypes, key=_unit))
    return judged("rotary", CLAIM, apply, probe.judge)


def _unit(dtype: torch.dtype) -> float:
    """The largest relative error of one rounding."""
    return torch.finfo(dtype).eps / 2


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tolerance(dtype: torch.dtype) -> float:
    """Of a length or a score, relative: in 16 bits cos, sin, two products and a sum are rounded."""
    return 1e-5 if _unit(dtype) < 1e-6 else 4 * _unit(dtype)


class _Turned(NamedTuple):
    """What came back for x at positions start, start + 1, ...: float64, [HEADS, T, head_dim]."""

    q: Tensor
    k: Tensor
    dtypes: tuple[torch.dtype, torch.dtype]

    def both(self, other: Sequence[Any]) -> list[tuple[Tensor, Any]]:
        return list(zip((self.q, self.k), other[:2], strict=True))


@dataclass
class _Probe:
    """The questions, in the order in which they are asked, and the vectors for them."""

    apply: Callable[..., Any]
    head_dim: int
    length: int
    rotary_dim: int | None
    scale: float
    dtypes: list[torch.dtype]  # the most precise first

    def judge(self, seen: dict[str, Any]) -> str:
        near, asked = self._first_call(), self.length
        whole, stopped = self._whole()
        seen |= {"positions": self.length}
        windows = {dtype: self._windows(dtype) for dtype in self.dtypes}
        exact = self._exact()
        self.precise = exact or windows[self.dtypes[0]]
        said = next(filter(None, (_promoted(dtype, runs[0], seen) for dtype, runs in windows.items())), "")
        said = said or self._position_0(seen) or self._lengths_and_distances(self.dtypes[0], whole, seen)
        for dtype, runs in windows.items():
            for run, start in zip(runs, (0, self.length - WINDOW), strict=True):
                said = said or self._lengths_and_distances(dtype, run, {}, start)
            said = said or (self._rounding(dtype, runs, exact, seen) if exact else "")
        said = said or self._alone(near, whole) or self._turning(whole, seen)
        if stopped and not said:
            advice = (
                f"Nothing is wrong up to there. If its tables end there, pass length={self.length}, or what they hold"
            )
            return Inconclusive(f"Positions up to {asked - 1} raise {stopped}. {advice}.")
        return said or self._caution(near, whole, seen)

    # ---------------------------------------------------------------- calling it

    @cached_property
    def vectors(self) -> Tensor:
        """[q and k, HEADS, length, head_dim], in numbers that every dtype holds exactly."""
        rng = torch.Generator().manual_seed(6)
        draw = lambda *shape: (torch.randn(*shape, self.head_dim, generator=rng).clamp(-3.9, 3.9) * 16).round() / 16
        same, other = draw(2, SAME, 1), draw(2, HEADS - SAME, self.length)
        other *= 2.0 ** (torch.arange(self.length) % 3)[:, None]
        return torch.cat([same.expand(-1, -1, self.length, -1), other], 1)

    @cached_property
    def takes_both(self) -> bool:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return sum(p.kind in kinds and p.default is p.empty for p in parameters_of(self.apply)) >= 3

    def turn(self, dtype: torch.dtype, start: int, count: int) -> _Turned:
        """Let the function rotate the vectors of these positions."""
        given = [x[None, :, start : start + count].to(dtype, copy=True) for x in self.vectors]
        positions = torch.arange(start, start + count)[None]
        if self.takes_both:
            out = attempt(self.apply, *given, positions)
            if not isinstance(out, (tuple, list)) or len(out) != 2:
                raise CannotJudge("Expected (q, k), both rotated.", returned=type(out).__name__)
        else:
            out = [attempt(self.apply, x, positions.clone()) for x in given]
        found = [tensor_of(x, "a tensor of x's shape").detach() for x in out]
        for x, name in zip(found, NAMES, strict=True):
            if x.shape != given[0].shape:
                raise CannotJudge(
                    f"Expected {name} in the shape that was given.", given=list(given[0].shape), returned=list(x.shape)
                )
            if not x.isfinite().all():
                raise CannotJudge(f"{name} holds NaN or inf.", given=_name(dtype))
        q, k = (x[0].double() for x in found)
        return _Turned(q, k, (found[0].dtype, found[1].dtype))

    def _first_call(self) -> _Turned:
        """The first positions alone. An exception here likely comes from a layout or a size that does not fit."""
        try:
            return self.turn(self.dtypes[0], 0, WINDOW)
        except Raised as raised:
            if type(raised.__cause__) not in (RuntimeError, IndexError, AssertionError):
                raise
            layout = (
                f"x was [1, {HEADS}, {WINDOW}, {self.head_dim}]: for code with [B, T, H, D] transpose before and after"
            )
            raise Raised(f"{layout}; tables for another head size need head_dim=.") from raised.__cause__

    def _whole(self) -> tuple[_Turned, str]:
        """All positions, or half as many until the function serves them; and what it raised, or ""."""
        stopped = ""
        while True:
            try:
                return self.turn(self.dtypes[0], 0, self.length), stopped
            except Raised as raised:
                if self.length < 2 * LEAST:
                    raise
                stopped = stopped or type(raised.__cause__).__name__
                self.length //= 2

    def _windows(self, dtype: torch.dtype) -> list[_Turned]:
        """The first positions and the last ones."""
        return [self.turn(dtype, start, WINDOW) for start in (0, self.length - WINDOW)]

    def _exact(self) -> list[_Turned] | None:
        """The windows in float64 or float32, if the function computes in it."""
        for dtype in (torch.float64, torch.float32):
            with contextlib.suppress(Raised, CannotJudge):
                runs = self._windows(dtype)
                if {*runs[0].dtypes} == {dtype}:
                    return runs
        return None

    # ---------------------------------------------------------------- position 0

    @cached_property
    def moves(self) -> Tensor:
        """[q and k, head_dim]: whether a dim of the result depends on the position."""
        changes = [(end[:SAME] - start[:SAME, :1]).abs() for start, end in self.precise[0].both(self.precise[1])]
        return torch.stack([change.amax((0, 1)) > 1e-6 * self.scale for change in changes])

    @cached_property
    def factor(self) -> Tensor:
        """[head_dim]: what position 0 multiplies by."""
        return torch.where(self.moves[0], self.scale, 1.0).double()

    @cached_property
    def orders(self) -> list[list[int] | None]:
        """For q and k: where each dim of the result comes from. None where position 0 does more than reorder."""
        return [self._order(y[:SAME, 0], x[:SAME, 0]) for y, x in self.precise[0].both(self.vectors)]

    def _order(self, y: Tensor, x: Tensor) -> list[int] | None:
        apart = ((y / self.factor)[:, :, None] - x[:, None, :]).abs().amax(0)  # [dims of y, dims of x]
        apart -= 1e-9 * torch.eye(self.head_dim)  # of equal ones its own
        nearest, order = apart.min(1)
        return order.tolist() if nearest.max() < 0.02 and len({*order.tolist()}) == self.head_dim else None

    def _position_0(self, seen: dict[str, Any]) -> str:
        counts = [int(moved.sum()) for moved in self.moves]
        seen["rotates"] = f"{max(counts)} of {self.head_dim} dims"
        if not max(counts):
            return "Nothing rotates: every position gives the same. Likely the positions are not used."
        for name, other, count in zip(NAMES, NAMES[::-1], counts, strict=True):
            if not count:
                return f"{name} is not rotated, and {other} is: scores depend on more than the distance. Rotate both."
        if None in self.orders:
            return self._not_the_identity()
        if self.orders[0] != self.orders[1] or (self.moves[0] != self.moves[1]).any():
            return "q and k come back in different orders of dims. Likely the halves are swapped in one of them."
        return ""

    def _not_the_identity(self) -> str:
        index = self.orders.index(None)
        x, y = self.vectors[index][:SAME, 0].double(), self.precise[0][index][:SAME]
        alone = "" if self.orders[1 - index] is None else f"{NAMES[index]}, and not {NAMES[1 - index]}: "
        ratios = (y[:, 0] / x)[:, self.moves[index]]
        factor = ratios[x[:, self.moves[index]] != 0].median()
        if (ratios - factor)[ratios.isfinite()].abs().max() < 1e-3 * factor.abs():
            return self._longer(float(factor), alone)
        with_x = (x * y[:, 0]).sum(-1)
        for step in range(1, WINDOW):
            if torch.allclose(with_x, (y[:, 0] * y[:, step]).sum(-1), rtol=1e-4):
                off = f"{alone}position 0 is rotated by {step} position{'s'[: step - 1]}, forward or back"
                return f"{off}. Likely an off-by-one in the start or in the table: position 0 must leave x as it is."
        if torch.allclose(y[:, 0].abs().sort(-1).values, x.abs().sort(-1).values, atol=0.02):
            return f"{alone}position 0 makes a quarter turn, dims change places and signs. Likely cos and sin are exchanged."
        return f"{alone}position 0 does not leave x as it is. {self._inside_a_pair(self.precise[0])}"

    def _longer(self, factor: float, alone: str) -> str:
        longer = f"{alone}at position 0 the dims that rotate are {number(factor)} times x"
        if 1 < factor < 1.5 and not alone:
            why = "So does YaRN's attention factor, and so does a mistake in the tables"
            return Inconclusive(f"{longer}. {why}: pass scale={factor:.7g} if it is meant (`rope.attention_scaling`).")
        return f"{longer}, and x is expected."

    # ---------------------------------------------------------------- lengths and distances

    def _lengths_and_distances(self, dtype: torch.dtype, run: _Turned, seen: dict[str, Any], start: int = 0) -> str:
        count, longer = run.q.shape[1], 0.0
        for y, x in run.both(self.vectors):
            expected = (x[:, start : start + count, self.orders[0]] * self.factor).norm(dim=-1)
            longer = max(longer, float((y.norm(dim=-1) / expected - 1).abs().max()))
        seen["lengths off by"] = round(longer, 4)
        if longer > _tolerance(dtype):
            return f"A vector does not keep its length in {_name(dtype)}. {self._inside_a_pair(run)}"
        # An angle of up to `length` is rounded to float32, in q and in k.
        spread, onset = _spread(run, _tolerance(dtype) + 2 * self.length * _unit(torch.float32))
        seen["scores of one distance differ by"] = round(spread, 4)
        return "" if onset is None else f"In {_name(dtype)} {self._distance(run, onset + start)}"

    def _distance(self, run: _Turned, onset: int) -> str:
        lost = "the score of q and k depends on more than their distance"
        crossed = (run.q[:SAME, :WINDOW] * run.k[:SAME, :WINDOW].flip(1)).sum(-1)  # positions of one sum
        lengths = run.q[:SAME, :1].norm(dim=-1) * run.k[:SAME, :1].norm(dim=-1)
        late = f"{lost} from about position {onset} on" if onset >= 32 else ""
        return first(
            {
                f"{lost}: q and k turn in opposite directions.": (
                    (crossed - crossed[:, :1]).abs() < 0.01 * lengths
                ).all(),
                f"{late}. Likely the table or the index starts again, or ends there.": late and _comes_back(run),
                f"{late}: it holds for near positions. {ANGLES}": late,
                f"{lost}. {self._inside_a_pair(run)}": True,
            }
        )

    # ---------------------------------------------------------------- rounding, and a cache

    def _rounding(self, dtype: torch.dtype, runs: list[_Turned], exact: list[_Turned], seen: dict[str, Any]) -> str:
        """A 16-bit result against the function's own precise one: [near, far], in roundings of the dtype."""
        if _unit(dtype) < 1e-6:
            return ""
        pairs = [run.both(to) for run, to in zip(runs, exact, strict=True)]
        off = [max(float(((y - e).norm(dim=-1) / e.norm(dim=-1)).max()) for y, e in pair) for pair in pairs]
        near, far = (value / _unit(dtype) for value in off)
        seen[f"{_name(dtype)}, roundings near and far"] = [round(near, 1), round(far, 1)]
        allowed = 4 + self.length * _unit(torch.float32) / _unit(dtype)
        if max(near, far) <= allowed:
            return ""
        place = f"{number(near)} roundings off below position {WINDOW}, {number(far)} below {self.length}"
        coarse = "Likely cos and sin are coarser than x, or another formula serves this dtype."
        return f"In {_name(dtype)} the result is {place}. {ANGLES if far > 2 * near else coarse}"

    def _alone(self, near: _Turned, whole: _Turned) -> str:
        """A few last tokens by themselves, as after a cache."""
        for run, end in ((near, WINDOW), (whole, self.length)):
            for count in (1, 5):
                alone = self.turn(self.dtypes[0], end - count, count)
                for (part, full), name in zip(alone.both(run), NAMES, strict=True):
                    if (part - full[:, -count:]).abs().max() < 0.02 * self.scale:
                        continue
                    apart = (part[:SAME, :1] - full[:SAME]).norm(dim=-1).amax(0)
                    found = f"as at position {int(apart.argmin())}" if apart.min() < 0.05 else "otherwise"
                    what = (
                        f"{name}: of {count} given alone, as after a cache, position {end - count} is rotated {found}"
                    )
                    return f"{what}. Likely `positions` is not used, or counted anew."
        return ""

    # ---------------------------------------------------------------- which pairs, and how they turn

    def _pairs(self, run: _Turned, index: int, positions: list[int]) -> tuple[str, Tensor] | None:
        """The pairing that explains these positions, and what each pair is multiplied by: [pairs, positions, 2, 2]."""
        x, y = self.vectors[index][:SAME, 0].double(), run[index][:SAME, positions]
        order = self.orders[index]
        y = y if order is None else y[..., torch.tensor(order).argsort()]
        for dims in dict.fromkeys([self.head_dim, int(self.moves[index].sum()) // 2 * 2]):
            numbers = torch.arange(dims)
            for name, pairs in (("half-split", numbers.view(2, -1).T), ("interleaved", numbers.view(-1, 2))):
                given, found = x[:, pairs].transpose(0, 1), y[..., pairs].permute(2, 0, 1, 3).flatten(2)
                matrices = torch.linalg.pinv(given) @ found  # [pairs, 2, positions * 2]
                if (given @ matrices - found).abs().max() < 0.05:
                    made = matrices.unflatten(-1, (-1, 2)).permute(0, 2, 3, 1)
                    return name, made[(made - torch.eye(2)).abs().amax((1, 2, 3)) > 1e-9]
        return None

    def _inside_a_pair(self, run: _Turned) -> str:
        """What is wrong in the pairs, of q or else of k."""
        for index, name in enumerate(NAMES):
            pairs = self._pairs(run, index, [1, 2, 3, 17, 100])
            if pairs is None:
                return f"No pairing of {name}'s dims explains it. Likely pairs are mixed, or tokens, or heads."
            (a, b), (c, d) = pairs[1].permute(2, 3, 0, 1)  # y1 = a x1 + b x2, y2 = c x1 + d x2
            alike = lambda u, v: bool((u - v).abs().max() < 0.03)
            a_rotation = max(float((u - v).abs().max()) for u, v in ((a, d), (b, -c), (a * a + b * b, a / a)))
            still = (alike(c, 0 * c) and alike(d, d / d)) or (alike(a, a / a) and alike(b, 0 * b))
            turned = alike(a * a + b * b, a / a) and alike(c * c + d * d, a / a)
            sign = "One half has the wrong sign: to y1 = x1 cos - x2 sin belongs y2 = x2 cos + x1 sin."
            said = first(
                {
                    "": a_rotation < 1e-5,
                    "One half of each pair is not rotated.": still,
                    sign: alike(a, d) and alike(b, c),
                    "cos and sin are rounded. Likely tables of a fixed 16-bit dtype: make them for x, or leave dtypes "
                    "that your code never runs in out of `dtypes`.": a_rotation < 0.03,
                    "The two dims of a pair turn by different angles. Likely tables of one layout (`cat`) and pairs of "
                    "the other (`repeat_interleave`).": turned,
                    "cos and sin of a pair do not belong to one angle.": True,
                }
            )
            if said:
                return said
        return "Likely rounding that adds up from position to position, or a factor that does."

    def _turning(self, whole: _Turned, seen: dict[str, Any]) -> str:
        """How many dims rotate, which way, and how fast."""
        count = int(self.moves[0].sum())
        if self.rotary_dim and count != self.rotary_dim:
            return f"{count} dims rotate, and rotary_dim = {self.rotary_dim}."
        if not self.rotary_dim and not self.moves[0][:count].all():
            still = ", ".join(map(str, (~self.moves[0]).nonzero().flatten()[:3].tolist()))
            why = "Partial rotary leaves the last dims, and some models have frequencies of 0"
            return Inconclusive(f"Dims {still}, ... stand still. {why}: pass rotary_dim={count} if it is meant.")
        steps = [2**i for i in range(self.length.bit_length() - 1)] + [self.length - 1]
        pairs = self._pairs(whole, 0, steps)
        seen["pairs"] = pairs[0] if pairs else "of another kind"
        if pairs is None:
            return ""
        angles = torch.atan2(pairs[1][..., 1, 0], pairs[1][..., 0, 0])  # [pairs, steps]
        speed = angles[:, 0]
        for step, angle in zip(steps, angles.T, strict=True):
            speed = speed + (torch.remainder(angle - step * speed + math.pi, 2 * math.pi) - math.pi) / step
        seen["turns"] = "forward" if (speed > 0).all() else "backward" if (speed < 0).all() else "both ways"
        cast = next((dtype for dtype in (torch.bfloat16, torch.float16) if _all_numbers_of(dtype, speed.abs())), None)
        return first(
            {
                Inconclusive("Some pairs turn forward, some backward. Scores bear it, but no known model does it."): (
                    seen["turns"] == "both ways"
                ),
                Inconclusive("All pairs turn equally fast. Likely the frequencies are one number."): (
                    len(speed) > 1 and speed.max() - speed.min() < 1e-6
                ),
                f"Every frequency is a number of {_name(cast or torch.float32)}. Likely the module was cast, inv_freq with it "
                f"(`model.bfloat16()`): far positions turn otherwise than in the model that was trained. {ANGLES}": cast,
            }
        )

    def _caution(self, near: _Turned, whole: _Turned, seen: dict[str, Any]) -> str:
        count = int(self.moves[0].sum())
        reordered = self.orders[0] != list(range(self.head_dim))
        changed = max(float((full[:, :WINDOW] - y).abs().max()) for y, full in near.both(whole)) > 0.02
        said = {
            f"Only the first {count} of {self.head_dim} dims rotate: rotary_dim={count} says that it is meant.": (
                not self.rotary_dim and count < self.head_dim
            ),
            "Dims come back in another order. Scores bear it, as long as q, k and a cache share it.": reordered,
            "A longer sequence turns the same positions otherwise (dynamic scaling): cached keys do not follow.": changed,
        }
        return Caution(" ".join(text for text, holds in said.items() if holds)) if any(said.values()) else ""


def _promoted(given: torch.dtype, run: _Turned, seen: dict[str, Any]) -> str:
    seen[_name(given)] = " and ".join(_name(dtype) for dtype in dict.fromkeys(run.dtypes))
    for name, other, got in zip(NAMES, NAMES[::-1], run.dtypes, strict=True):
        if got != given:
            who = "q and k come" if run.dtypes[0] == run.dtypes[1] else f"{name}, and not {other}, comes"
            wider = "cos and sin are wider than x, and a product takes the wider dtype"
            why = wider if _unit(got) < _unit(given) or got == torch.float32 else "a cast to a fixed dtype"
            return f"From {_name(given)} {who} back as {_name(got)}. Likely {why}. Cast the result: `out.to(x.dtype)`."
    return ""


def _spread(run: _Turned, tolerance: float) -> tuple[float, int | None]:
    """How far the scores of one distance differ, relative to the lengths, and the first position where it is too far."""
    count = run.q.shape[1]
    lengths = run.q[:SAME, :1].norm(dim=-1) * run.k[:SAME, :1].norm(dim=-1)
    widest, late = 0.0, []
    for apart in (0, 1, 7, count // 8, count // 2):
        scores = (run.q[:SAME, apart:] * run.k[:SAME, : count - apart]).sum(-1) / lengths  # [SAME, count - apart]
        off = (scores - scores[:, :1]).abs().amax(0)
        widest = max(widest, float(off.max()))
        late += [int(place) + apart for place in (off > tolerance).nonzero()[:1]]
    return widest, min(late, default=None)


def _comes_back(run: _Turned) -> bool:
    """Whether two positions that are far apart are rotated exactly alike, and their neighbours too or not at all."""
    y = run.q[0]
    last = (y == y[-1]).all(-1).nonzero().flatten()
    begin = (y == y[0]).all(-1).nonzero().flatten()
    return len(begin) > 1 or len(last) > 600


def _all_numbers_of(dtype: torch.dtype, speed: Tensor) -> bool:
    """Whether frequencies are exactly numbers of a 16-bit dtype, and not because they are powers of two."""
    telling = speed[(speed > 0.003) & (speed.frexp().mantissa != 0.5)]
    off = (telling - telling.to(dtype).double()).abs() / telling
    return len(telling) >= 4 and bool(off.max() < 0.02 * _unit(dtype))
