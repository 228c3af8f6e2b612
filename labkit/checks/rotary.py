"""Is a function a rotary position embedding: a rotation by the position, in every dtype, and far out too?

It is given neither the pairs of dims, nor the sign, nor the base: it asks for what all sound functions have in common.
So another base passes, and an exponent that is half too small looks like one. It builds no model and judges no
attention. Which positions a trainer hands over is the trainer's business.
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

from .report import (
    PASS,
    CannotJudge,
    Raised,
    Report,
    Verdict,
    attempt,
    caution,
    fail,
    inconclusive,
    judged,
    parameters_of,
    tensor_of,
)

CLAIM = "a rotation by the position, in every dtype and at large positions"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HEADS, SAME = 4, 3  # the first three heads hold one vector at all positions, the last another at each
WINDOW, LEAST = 128, 256  # positions
# Root mean square, in largest errors of one rounding. Measured: 0.42 where the result is cast, 0.5 to 0.7 where
# the tables are; bfloat16 tables for a float16 x: 2.6.
ROUNDINGS = 1.5
NAMES = ("q", "k")
ANGLES = (
    "Likely positions, frequencies or angles are kept in 16 bits, or as whole numbers: compute angles in float32, then "
    "cast cos and sin, or the result."
)

ROUNDED = (
    "cos and sin are coarser than x. Likely tables, or x, in a fixed 16-bit dtype, or angles under autocast: make them "
    "for x's dtype, or leave dtypes that your code never runs in out of `dtypes`."
)
PAIRS = (
    "cos and sin do not turn a pair by one angle. To y1 = x1 cos - x2 sin belongs y2 = x2 cos + x1 sin. Likely a sign, "
    "a half left out, or tables of one layout (`cat`) and pairs of the other (`repeat_interleave`)."
)


def rotary(
    apply: Callable[..., Any],
    *,
    head_dim: int = 64,
    length: int = 8192,
    rotary_dim: int | None = None,
    dtypes: Sequence[torch.dtype] = DTYPES,
) -> Report:
    """Check `apply(x, positions)`, which must return x rotated, or `apply(q, k, positions)`, which must return both.

        x, q, k      [B, H, T, head_dim], as transformers' attention has them
        positions    [B, T] whole numbers in a row, from 0, or from where a cache ends; each row has its own start
        head_dim     must fit the function's tables
        length       positions 0 to length - 1 are tried; at least 256
        rotary_dim   how many dims rotate, the first ones. None: all, or, with a caution, fewer (partial rotary)
        dtypes       those of float32, bfloat16 and float16 that your code runs in

    Asked in each dtype: it is kept; position 0 leaves x as it is (or, with a caution, up to 1.5 times as long: YaRN's
    attention factor); vectors keep their length; the score of q and k depends on their distance only; a 16-bit result
    is within 1.5 roundings of the function's own float32 one, near and far; a few tokens alone, as after a cache, are
    rotated as in the whole sequence; so is each of two rows by its own positions (code for one row gets a caution). Any
    base, either sign and any pairing will do, and another order of the dims, if q and k share it.

    Most code needs a lambda. `rope` is a model's RotaryEmbedding; without `k`, one function serves q and k:

        Llama, Qwen, GPT-NeoX     lambda q, k, p: apply_rotary_pos_emb(q, k, *rope(q, p))
        tables [1, T, ...]        lambda x, p: rotate(x.transpose(1, 2), cos[0, p], sin[0, p]).transpose(1, 2)
        a start, no positions     lambda x, p: torch.cat([rotate(r[None], start=int(q[0])) for r, q in zip(x, p)])

    Raises: ValueError names a length or dtypes that cannot be.
    """
    if length < LEAST:
        raise ValueError(f"rotary: length = {length}: expected {LEAST} or more, to see what rounded angles do")
    if not dtypes or not {*dtypes} <= {*DTYPES}:
        raise ValueError(f"rotary: dtypes = {dtypes}: expected some of {DTYPES}")
    precise_first = sorted(dtypes, key=lambda dtype: dtype != torch.float32)
    return judged("rotary", CLAIM, apply, _Probe(apply, head_dim, length, rotary_dim, precise_first).judge)


def _unit(dtype: torch.dtype) -> float:
    """The largest relative error of one rounding."""
    return torch.finfo(dtype).eps / 2


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tolerance(dtype: torch.dtype) -> float:
    """Of a length or a score, relative: in 16 bits cos, sin, two products and a sum are rounded."""
    return 1e-5 if _unit(dtype) < 1e-6 else 4 * _unit(dtype)


class _Result(NamedTuple):
    """What came back for the vectors at positions start, start + 1, ..."""

    y: Tensor  # [q and k, HEADS, T, head_dim], float64
    dtypes: list[torch.dtype]  # of q and of k
    start: int

    @property
    def same(self) -> Tensor:
        """The heads that hold one vector at all positions."""
        return self.y[:, :SAME]

    @property
    def alike(self) -> Tensor:
        """[T - 1]: whether a position is rotated exactly as the one before."""
        return (self.y[0, 0, 1:] == self.y[0, 0, :-1]).all(-1)


@dataclass
class _Probe:
    """The questions, in the order in which they are asked, and the vectors for them."""

    apply: Callable[..., Any]
    head_dim: int
    length: int
    rotary_dim: int | None
    dtypes: list[torch.dtype]  # float32 first, if it is asked for
    factor: float = 1.0  # how much longer position 0 makes the dims that rotate

    def judge(self, evidence: dict[str, Any]) -> Verdict:
        # 1. What is asked of each dtype: the first positions and the last.
        near = self._first_call()
        evidence["positions"] = self.length
        try:
            whole = self.turn(self.dtypes[0], 0, self.length)
        except Raised:
            return inconclusive(f"Positions up to {self.length - 1} raise: pass length=, or what the tables hold.")
        windows = {dtype: self._windows(dtype) for dtype in self.dtypes}
        exact = windows.get(torch.float32)
        if exact is None:  # code for 16 bits alone may raise in float32
            with contextlib.suppress(Raised, CannotJudge):
                exact = self._windows(torch.float32)
        self.precise = exact or windows[self.dtypes[0]]

        # 2. The questions; the first that is answered with No decides.
        for dtype, (first, _) in windows.items():
            if verdict := _promoted(dtype, first):
                return verdict
        verdict = self._position_0(evidence) or self._geometry(self.dtypes[0], whole, evidence)
        for dtype, runs in windows.items():
            if exact and not verdict:
                verdict = self._rounding(dtype, runs, exact, evidence)
            verdict = verdict or self._geometry(dtype, runs[0], {}) or self._geometry(dtype, runs[1], {})
        verdict = verdict or self._alone(near, whole) or self._turning(whole, evidence) or self._rows_apart(evidence)
        return verdict or self._cautions(near, whole, one_row="rows" not in evidence)

    # ---------------------------------------------------------------- calling it

    @cached_property
    def vectors(self) -> Tensor:
        """[q and k, HEADS, length, head_dim], in numbers that every dtype holds exactly."""
        rng = torch.Generator().manual_seed(6)

        def draw(*shape: int) -> Tensor:
            drawn = torch.randn(*shape, self.head_dim, generator=rng, dtype=torch.float32)
            return (drawn.clamp(-3.9, 3.9) * 16).round() / 16

        same, other = draw(2, SAME, 1), draw(2, HEADS - SAME, self.length)
        other *= 2.0 ** (torch.arange(self.length) % 3)[:, None]
        drawn = torch.cat([same.expand(-1, -1, self.length, -1), other], 1)
        return drawn.where(drawn != 0, 1.0)

    @cached_property
    def takes_both(self) -> bool:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return sum(p.kind in kinds and p.default is p.empty for p in parameters_of(self.apply)) >= 3

    def turn(self, dtype: torch.dtype, start: int, count: int) -> _Result:
        """Let the function rotate the vectors of these positions."""
        x = self.vectors[:, None, :, start : start + count].to(dtype)
        results = self._rotated(list(x), torch.arange(start, start + count)[None])
        for y in results:
            if y.shape != x.shape[1:]:
                raise CannotJudge("Expected x's own shape.", given=list(x.shape[1:]), returned=list(y.shape))
            if not y.isfinite().all():
                raise CannotJudge("The result holds NaN or inf.", given=_name(dtype))
        return _Result(torch.cat([y.double() for y in results]), [y.dtype for y in results], start)

    def _rotated(self, given: list[Tensor], positions: Tensor) -> list[Tensor]:
        """What the function makes of q and of k, [B, H, T, head_dim] each. It gets copies."""
        if self.takes_both:
            out = attempt(self.apply, *(x.clone() for x in given), positions.clone())
            if not isinstance(out, (tuple, list)) or len(out) != 2:
                raise CannotJudge("Expected (q, k), both rotated.", returned=type(out).__name__)
        else:
            out = [attempt(self.apply, x.clone(), positions.clone()) for x in given]
        return [tensor_of(x, "a tensor of x's shape").detach() for x in out]

    def _first_call(self) -> _Result:
        """The first positions alone. An exception here likely comes from a layout or a size that does not fit."""
        try:
            return self.turn(self.dtypes[0], 0, WINDOW)
        except Raised as raised:
            if type(raised.__cause__) not in (
                RuntimeError,
                IndexError,
                AssertionError,
            ):  # not yet written: another hint
                raise
            shape = f"[1, {HEADS}, {WINDOW}, {self.head_dim}]"
            raise Raised(
                f"x was {shape}: transpose it for code with [B, T, H, D], or pass head_dim=."
            ) from raised.__cause__

    def _windows(self, dtype: torch.dtype) -> list[_Result]:
        """The first positions and the last ones."""
        return [self.turn(dtype, start, WINDOW) for start in (0, self.length - WINDOW)]

    # ---------------------------------------------------------------- position 0

    @cached_property
    def moves(self) -> Tensor:
        """[q and k, heads with one vector, head_dim]: whether a dim of the result depends on the position."""
        start, end = self.precise
        return (end.same - start.same[:, :, :1]).abs().amax(2) > 1e-6

    @property
    def scale(self) -> Tensor:
        """[head_dim]: what position 0 multiplies by."""
        return torch.where(self.moves[0].any(0), self.factor, 1.0).double()

    @property
    def orders(self) -> list[list[int] | None]:
        """For q and k: where each dim of the result comes from. None where position 0 does more than reorder."""
        orders: list[list[int] | None] = []
        for y, x in zip(self.precise[0].same[:, :, 0], self.vectors[:, :SAME, 0], strict=True):
            apart = ((y / self.scale)[:, :, None] - x[:, None, :]).abs().amax(0)  # [dims of y, dims of x]
            apart -= 1e-9 * torch.eye(self.head_dim)  # of equal ones its own
            nearest, order = apart.min(1)
            whole = nearest.max() < 0.02 and len({*order.tolist()}) == self.head_dim
            orders.append(order.tolist() if whole else None)
        return orders

    def _position_0(self, evidence: dict[str, Any]) -> Verdict | None:
        counts = self.moves.any(1).sum(1).tolist()
        evidence["rotates"] = f"{max(counts)} of {self.head_dim} dims"
        if not max(counts):
            return fail("Nothing rotates: every position gives the same. Likely the positions are not used.")
        if self._heads_apart():
            return fail("Some heads rotate and others do not. Likely `x[:, :n]`, which cuts heads, for `x[..., :n]`.")
        if not min(counts):
            other = NAMES[counts.index(0)]
            return fail(f"{other} is not rotated: scores depend on more than the distance. Rotate both.")
        if None in self.orders:
            self.factor = self._longer()
            evidence["position 0 multiplies by"] = self.factor
        if None in self.orders or not 1 <= self.factor < 1.5:
            return fail(self._not_the_identity())
        if self.orders[0] != self.orders[1] or (self.moves[0].any(0) != self.moves[1].any(0)).any():
            return fail("q and k come back in different orders of dims. Likely halves are swapped in one of them.")
        return None

    def _heads_apart(self) -> bool:
        """Whether some heads rotate in more dims than others."""
        end = self.precise[1]
        x = self.vectors[:, SAME:, end.start : end.start + WINDOW].double()
        last_stands_still = (end.y[:, SAME:] - x).abs().amax((1, 2, 3)) < 1e-6
        return bool((self.moves != self.moves[:, :1]).any() or (self.moves.any(-1).all(1) & last_stands_still).any())

    def _longer(self) -> float:
        """The factor of the dims that rotate, at position 0, if it is one for all of them; else 1."""
        dims = self.moves.any(1).any(0)
        ratios = (self.precise[0].same[:, :, 0] / self.vectors[:, :SAME, 0])[..., dims]
        factor = float(ratios.median())
        return factor if (ratios - factor).abs().max() < 1e-3 * abs(factor) else 1.0

    def _not_the_identity(self) -> str:
        if self.factor != 1:
            return f"At position 0 the dims that rotate are {number(self.factor)} times x, and x is expected."
        at = self.orders.index(None)
        leaves = f"Position 0 does not leave {NAMES[at]} as it is."
        x, y = self.vectors[at, :SAME, 0].double(), self.precise[0].same[at]  # [SAME, D], [SAME, WINDOW, D]
        close = 4 * _tolerance(self.dtypes[0]) * x.square().sum(-1)
        for step in range(1, WINDOW):  # x is to position 0 what that is to `step`
            if ((x * y[:, 0] - y[:, 0] * y[:, step]).sum(-1).abs() < close).all():
                return f"{leaves} Likely an off-by-one in the start or in the table: it is {step} too many or too few."
        return f"{leaves} Likely cos and sin, halves, or q and k are mixed up."

    # ---------------------------------------------------------------- lengths and distances

    def _geometry(self, dtype: torch.dtype, run: _Result, evidence: dict[str, Any]) -> Verdict | None:
        """A rotation keeps lengths, and a score depends on the distance alone."""
        x = self.vectors[:, :, run.start : run.start + run.y.shape[2], self.orders[0]] * self.scale
        longer = float((run.y.norm(dim=-1) / x.norm(dim=-1) - 1).abs().max())
        evidence["lengths off by"] = round(longer, 4)
        if longer > _tolerance(dtype):
            why = PAIRS
            if run.alike.any():
                why = ANGLES
            elif longer < 0.03:
                why = ROUNDED
            return fail(f"A vector does not keep its length in {_name(dtype)}. {why}")
        # An angle of up to `length` is rounded to float32, in q and in k.
        q, k = run.same
        spread, onset = _spread(q, k, _tolerance(dtype) + 2 * self.length * _unit(torch.float32))
        evidence["scores of one distance differ by"] = round(spread, 4)
        if onset is None:
            return None
        place = f"from about position {run.start + onset} on"
        lost = f"In {_name(dtype)} the score of q and k depends on more than their distance, {place}."
        if run.alike.any() and not run.alike[onset:].all():  # all alike: a table that ends there
            return fail(f"{lost} {ANGLES}")
        return fail(
            f"{lost} Likely k turns another way than q, or in other pairs; or the angle is not the position times a "
            "fixed number, as with a table that ends there or starts again."
        )

    # ---------------------------------------------------------------- rounding, and a cache

    def _rounding(
        self, dtype: torch.dtype, runs: list[_Result], exact: list[_Result], evidence: dict[str, Any]
    ) -> Verdict | None:
        """A 16-bit result against the function's own precise one, in roundings of the dtype."""
        if dtype == torch.float32:
            return None
        dims = self.moves[0].any(0)
        off = []
        for run, to in zip(runs, exact, strict=True):
            difference = (run.y - to.y)[..., dims].norm(dim=-1)
            off.append(difference / to.y[..., dims].norm(dim=-1) / _unit(dtype))
        first_few, near, far = (float(each.square().mean().sqrt()) for each in (off[0][:, :, :8], *off))
        evidence[f"{_name(dtype)}, roundings near and far"] = [round(near, 2), round(far, 2)]
        allowed = ROUNDINGS + self.length * _unit(torch.float32) / _unit(dtype)
        if max(near, far) <= allowed:
            return None
        place = f"{number(near)} roundings off below position {WINDOW}, {number(far)} below {self.length}"
        why = ROUNDED
        if first_few <= allowed:  # it grows with the position
            why = ANGLES
        return fail(f"In {_name(dtype)} what rotates is {place}. {why}")

    def _alone(self, near: _Result, whole: _Result) -> Verdict | None:
        """A few last tokens by themselves, as after a cache."""
        for run, end in ((near, WINDOW), (whole, self.length)):
            for count in (1, 5):
                alone = self.turn(self.dtypes[0], end - count, count)
                if (alone.y - run.y[:, :, -count:]).abs().max() < 0.02:
                    continue
                return fail(
                    f"Given alone, as after a cache, position {end - count} is rotated otherwise. Likely `positions` "
                    "is not used, or counted anew, or the frequencies depend on how long the call is."
                )
        return None

    def _rows_apart(self, evidence: dict[str, Any]) -> Verdict | None:
        """Two rows that begin at positions of their own."""
        starts, count = (0, 5), 16
        positions = torch.tensor(starts)[:, None] + torch.arange(count)
        rows_of = [self.vectors[:, :, start : start + count] for start in starts]
        given = torch.stack(rows_of, 1).to(self.dtypes[0])  # [q and k, row, H, T, D]
        try:
            rows = torch.stack(self._rotated(list(given), positions)).double()
        except (Raised, CannotJudge, RuntimeError):
            return None  # code for one row
        if rows.shape != given.shape:
            return None
        evidence["rows"] = "each by its own positions"
        off = [rows[:, row] - self.turn(self.dtypes[0], start, count).y for row, start in enumerate(starts)]
        if max(float(each.abs().max()) for each in off) < 0.02:
            return None
        evidence["rows"] = "not each by its own positions"
        return fail(
            "Of two rows with positions of their own the second is rotated otherwise than alone. Likely the first "
            "row's positions, or its start, serve all rows. Prompts that are padded on the left have other positions "
            "in each row."
        )

    # ---------------------------------------------------------------- which pairs, and how they turn

    def _angles(self, whole: _Result, places: list[int]) -> tuple[str, Tensor] | None:
        """How q's dims are paired, and the angle of each pair at these places, [pairs, places].

        A pair is a complex number that is multiplied by the same one in every head. None: no pairing explains it.
        """
        x, y = self.vectors[0, :SAME, :1].double(), whole.same[0][:, places]
        y = y[..., torch.tensor(self.orders[0]).argsort()]
        moving = int(self.moves[0].any(0).sum()) // 2 * 2
        for dims in dict.fromkeys([self.head_dim // 2 * 2, moving]):
            numbers = torch.arange(dims)
            for name, (one, two) in (("half-split", numbers.view(2, -1)), ("interleaved", numbers.view(-1, 2).T)):
                turned = torch.complex(y[..., one], y[..., two]) / torch.complex(x[..., one], x[..., two])
                rotates = (turned[0] - 1).abs().amax(0) > 1e-9
                if rotates.any() and (turned - turned[:1]).abs().max() < 0.05:
                    return name, turned[0][:, rotates].angle().T
        return None

    def _turning(self, whole: _Result, evidence: dict[str, Any]) -> Verdict | None:
        """How many dims rotate, which way, and how fast."""
        moves = self.moves[0].any(0)
        count = int(moves.sum())
        if self.rotary_dim and count != self.rotary_dim:
            return fail(f"{count} dims rotate, and rotary_dim = {self.rotary_dim}.")
        if not self.rotary_dim and not moves[:count].all():
            return inconclusive(f"Other dims than the last stand still: pass rotary_dim={count} if it is meant.")
        steps = [2**i for i in range(self.length.bit_length() - 1)] + [self.length - 1]
        pairs = self._angles(whole, steps)
        evidence["pairs"] = pairs[0] if pairs else "of another kind"
        if pairs is None:
            return None
        # The angle of one step, made more precise by each larger step: radians a position, [pairs].
        angles = pairs[1]
        speed = angles[:, 0]
        for step, angle in zip(steps, angles.T, strict=True):
            speed = speed + (torch.remainder(angle - step * speed + math.pi, 2 * math.pi) - math.pi) / step
        evidence["turns"] = "forward" if speed[0] > 0 else "backward"
        evidence["fastest, radians a position"] = float(speed.abs().max())
        if speed.max() > 0 > speed.min():
            return inconclusive("Some pairs turn forward, some backward. Scores bear it, but no known model does it.")
        if speed.abs().max() > 1.01:
            return inconclusive("A pair turns by more than 1 radian a position. Likely x is rotated twice.")
        if len(speed) > 1 and speed.max() - speed.min() < 1e-6:
            return inconclusive("All pairs turn equally fast. Likely the frequencies are one number.")
        for dtype in (torch.bfloat16, torch.float16):
            if _all_numbers_of(dtype, speed.abs()):
                return fail(
                    f"Every frequency is a {_name(dtype)} number. Likely the module was cast, and inv_freq with it: "
                    "far positions turn otherwise than in training. Keep inv_freq in float32."
                )
        return None

    def _cautions(self, near: _Result, whole: _Result, one_row: bool) -> Verdict:
        moves = self.moves[0].any(0)
        count = int(moves.sum())
        cautions = []
        if not self.rotary_dim and count < self.head_dim:
            cautions.append(f"Only the first {count} dims rotate; rotary_dim={count} says it is meant.")
        if self.rotary_dim and not moves[:count].all():
            cautions.append(f"{count} dims rotate, and they are not the first {count}: in most models they are.")
        if self.factor != 1:
            cautions.append(f"It makes x {number(self.factor)} times as long: YaRN's attention factor, or a mistake.")
        if self.orders[0] != list(range(self.head_dim)):
            cautions.append("Dims come back in another order. Scores bear it, as long as q, k and a cache share it.")
        if (near.y - whole.y[:, :, :WINDOW]).abs().max() > 0.02:
            cautions.append("A longer sequence turns the same positions otherwise (dynamic scaling). A cache does not.")
        if one_row:
            cautions.append("Judged for one row: two rows with positions of their own raise, or change their shape.")
        return caution(" ".join(cautions)) if cautions else PASS


def _promoted(given: torch.dtype, run: _Result) -> Verdict | None:
    for name, dtype in zip(NAMES, run.dtypes, strict=True):
        if dtype != given:
            return fail(
                f"From {_name(given)} {name} comes back as {_name(dtype)}. Likely a cast to a fixed dtype, or cos and "
                "sin are wider than x: a product takes the wider dtype. Cast the result: `out.to(x.dtype)`."
            )
    return None


def _spread(q: Tensor, k: Tensor, tolerance: float) -> tuple[float, int | None]:
    """How far scores of one distance differ, relative to the lengths, and the first position where it is too far."""
    count, lengths = q.shape[1], q[:, :1].norm(dim=-1) * k[:, :1].norm(dim=-1)  # q, k: [SAME, T, D]
    widest, late = 0.0, []
    for apart in (0, 1, 7, count // 8, count // 2):
        scores = (q[:, apart:] * k[:, : count - apart]).sum(-1) / lengths  # [SAME, T - apart]
        off = (scores - scores[:, :1]).abs().amax(0)
        widest = max(widest, float(off.max()))
        late += [int(place) + apart for place in (off > tolerance).nonzero()[:1]]
    return widest, min(late, default=None)


def _all_numbers_of(dtype: torch.dtype, speed: Tensor) -> bool:
    """Whether frequencies are exactly numbers of a 16-bit dtype, and not because they are powers of two."""
    telling = speed[(speed > 0.003) & (speed.frexp().mantissa != 0.5)]
    off = (telling - telling.to(dtype).double()).abs() / telling
    return len(telling) >= 4 and bool(off.max() < 0.02 * _unit(dtype))
