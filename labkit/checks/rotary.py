"""Is a function a rotary position embedding: a rotation by the position, in every dtype, and far out too?

It measures how far each pair of dims of one head is turned at each position, and holds all else against that: the
other heads, k, 16 bits, a few tokens alone, two rows. It builds no model and judges no attention. Which positions a
trainer hands over is the trainer's business.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
UNIT = {dtype: torch.finfo(dtype).eps / 2 for dtype in DTYPES}  # the largest relative error of one rounding
# Root mean square, in largest errors of one rounding. Measured: 0.42 where the result is cast, 0.5 to 0.7 where
# the tables are; bfloat16 tables for a float16 x: 2.6.
ROUNDINGS = 1.5
# How pairs stand in x, and how in the result. The last is DeepSeek's, which takes the pairs apart.
LAYOUTS = (("half-split", "half-split"), ("interleaved", "interleaved"), ("interleaved", "half-split"))
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
    "a half left out, q and k exchanged, or tables of one layout (`cat`) and pairs of the other (`repeat_interleave`)."
)
EXPONENT = (
    "In transformers pair i of D dims turns by theta ** (-2 * i / D) a position; with an exponent of i / D, or of "
    "i / (D / 2 - 1), it looks like another base"
)


def rotary(
    apply: Callable[..., Any],
    *,
    head_dim: int = 64,
    length: int = 8192,
    theta: float | None = None,
    dtypes: Sequence[torch.dtype] = DTYPES,
) -> Report:
    """Check `apply(x, positions)`, which must return x rotated, or `apply(q, k, positions)`, which must return both.

        x, q, k      [B, H, T, head_dim], as transformers' attention has them
        positions    [B, T] whole numbers in a row, from 0, or from where a cache ends; each row has its own start
        head_dim     must fit the function's tables
        length       positions 0 to length - 1 are tried; at least 256
        theta        the base of your frequencies, where they are not scaled. None: any, with a caution where hardly a
                     model has it
        dtypes       those of float32, bfloat16 and float16 that your code runs in

    Asked: the dtype is kept; position 0 leaves x as it is (or, with a caution, up to 1.5 times as long: YaRN's
    attention factor); each pair of dims, (i, i + D / 2) or (2 i, 2 i + 1), is turned by the position times a number of
    its own, in all heads, in k as in q; a 16-bit result is within 1.5 roundings of that, near and far; a few tokens
    alone, as after a cache, are rotated as in the whole sequence; so is each of two rows by its own positions (code for
    one row gets a caution). Either sign will do, and, with a caution, a part of the dims (the first ones).

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
    return judged("rotary", CLAIM, apply, _Probe(apply, head_dim, length, theta, precise_first).judge)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Rotation(NamedTuple):
    """How the pairs of one vector are turned, as measured."""

    layout: str
    pairs: Tensor  # [2, pairs]: the two dims of each in x
    results: Tensor  # [2, pairs]: where they stand in the result
    factor: float  # how much longer position 0 makes them
    start: Tensor  # [pairs]: the angle at position 0
    speed: Tensor  # [pairs]: radians a position
    uneven: float  # how much a pair's length depends on the position, relative

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [..., T, D] at these positions, [..., T], in float64."""
        y = x.double()
        one, two = y[..., self.pairs[0]], y[..., self.pairs[1]]
        angles = positions[..., None] * self.speed
        cos, sin = self.factor * angles.cos(), self.factor * angles.sin()
        y = y.clone()
        y[..., self.results[0]], y[..., self.results[1]] = one * cos - two * sin, two * cos + one * sin
        return y


def _pairs(dims: Tensor, layout: str) -> Tensor:
    return dims.view(2, -1) if layout == "half-split" else dims.view(-1, 2).T


def _measure(x: Tensor, y: Tensor, dims: Tensor) -> _Rotation:
    """How one vector x [D] became y [T, D] at positions 0 to T - 1, in the layout that explains it best."""
    rotations = [_in_layout(x, y, dims, *layout) for layout in LAYOUTS]
    return min(rotations, key=lambda rotation: rotation.uneven)


def _in_layout(x: Tensor, y: Tensor, dims: Tensor, layout: str, of_result: str) -> _Rotation:
    pairs, results = _pairs(dims, layout), _pairs(dims, of_result)
    # A pair is a complex number. A rotation multiplies it by one of constant length.
    turned = torch.complex(y[:, results[0]], y[:, results[1]]) / torch.complex(x[pairs[0]], x[pairs[1]])
    factor = float(turned[0].abs().median())
    uneven = float((turned.abs() / max(factor, 1e-9) - 1).abs().max())
    angles = (turned / turned[0]).angle()  # [T, pairs]
    # The angle of one step, made more precise by each larger step.
    speed = angles[1]
    for step in [2**i for i in range(1, len(y).bit_length() - 1)] + [len(y) - 1]:
        speed = speed + _wrapped(angles[step] - step * speed) / step
    return _Rotation(layout, pairs, results, factor, turned[0].angle(), speed, uneven)


def _wrapped(angle: Tensor) -> Tensor:
    """The same angle from -pi to pi."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


@dataclass
class _Probe:
    """The questions, in the order in which they are asked, and the vectors for them."""

    apply: Callable[..., Any]
    head_dim: int
    length: int
    theta: float | None
    dtypes: list[torch.dtype]  # float32 first, if it is asked for
    cautions: list[str] = field(default_factory=list)

    def judge(self, evidence: dict[str, Any]) -> Verdict:
        # 1. The first positions, and all of them.
        near = self.turn(self.dtypes[0], 0, WINDOW)
        try:
            whole = self.turn(self.dtypes[0], 0, self.length)
        except Raised:
            return inconclusive(f"Positions up to {self.length - 1} raise: pass length=, or what the tables hold.")

        # 2. What moves, and how it is turned, measured in the first head. A longer call may turn otherwise.
        moves = ((whole - whole[:, :, :1])[:, :SAME].abs() > 1e-6).any(2).any(1).any(0)  # [head_dim]
        dims = moves.nonzero()[:, 0]
        evidence["rotates"] = f"{len(dims)} of {self.head_dim} dims"
        if not len(dims):
            return fail("Nothing rotates: every position gives the same. Likely the positions are not used.")
        if len(dims) % 2:
            return fail(PAIRS)
        first = self.vectors[0, 0, 0].double()
        self.near, self.far = _measure(first, near[0, 0], dims), _measure(first, whole[0, 0], dims)

        # 3. The questions; the first that is answered with No decides.
        verdict = self._pairs_and_start(evidence) or self._all_heads(whole)
        verdict = verdict or self._alone(near, whole) or self._rows_apart()
        for dtype in self.dtypes:
            verdict = verdict or self._rounding(dtype, evidence)
        verdict = verdict or self._frequencies(moves, evidence)
        return verdict or (caution(" ".join(self.cautions)) if self.cautions else PASS)

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

    def turn(self, dtype: torch.dtype, start: int, count: int) -> Tensor:
        """What becomes of the vectors of these positions, [q and k, HEADS, count, head_dim], in float64."""
        x = self.vectors[:, None, :, start : start + count].to(dtype)
        results = self._call(x, torch.arange(start, start + count)[None])
        for name, y in zip("qk", results, strict=True):
            if y.shape != x.shape[1:]:
                raise CannotJudge("Expected x's own shape.", given=list(x.shape[1:]), returned=list(y.shape))
            if not y.isfinite().all():
                raise CannotJudge("The result holds NaN or inf.", given=_name(dtype))
            if y.dtype != dtype:
                raise CannotJudge(
                    f"From {_name(dtype)} {name} comes back as {_name(y.dtype)}. Likely a cast to a fixed dtype, or "
                    "cos and sin are wider than x: a product takes the wider dtype. Cast the result: `out.to(x.dtype)`."
                )
        return torch.cat(results).double()

    def _call(self, x: Tensor, positions: Tensor) -> list[Tensor]:
        """What the function makes of q and of k, [B, H, T, head_dim] each. It gets copies."""
        if self.takes_both:
            out = attempt(self.apply, x[0].clone(), x[1].clone(), positions.clone())
            if not isinstance(out, (tuple, list)) or len(out) != 2:
                raise CannotJudge("Expected (q, k), both rotated.", returned=type(out).__name__)
        else:
            out = [attempt(self.apply, one.clone(), positions.clone()) for one in x]
        return [tensor_of(one, "a tensor of x's shape").detach() for one in out]

    # ---------------------------------------------------------------- the questions

    def _pairs_and_start(self, evidence: dict[str, Any]) -> Verdict | None:
        near, factor = self.near, self.far.factor
        if near.uneven > 0.05:
            return fail(PAIRS)
        evidence |= {"pairs": near.layout, "position 0 multiplies by": round(factor, 3)}
        if near.start.abs().max() > 0.02:
            leaves = "Position 0 does not leave x as it is. Likely"
            for step in range(-WINDOW, WINDOW):
                if _wrapped(near.start - step * near.speed).abs().max() < 0.02:
                    return fail(f"{leaves} an off-by-one in the start or in the table: it is {step} too many.")
            return fail(f"{leaves} cos and sin are exchanged.")
        if not 0.999 < factor < 1.5:
            return fail(f"At position 0 the dims that rotate are {number(factor)} times x, and x is expected.")
        if factor > 1.001:
            self.cautions.append(f"It makes x {number(factor)} times as long: YaRN's factor, or a mistake.")
        if (near.pairs != near.results).any():
            self.cautions.append("Dims come back in another order, which q, k and a cache must share.")
        return None

    def _all_heads(self, whole: Tensor) -> Verdict | None:
        """Whether every head of q and of k is turned by the position as the first head of q is measured to be."""
        dtype, positions = self.dtypes[0], torch.arange(self.length)
        tolerance = 1e-5 if dtype == torch.float32 else 4 * UNIT[dtype]  # cos, sin, two products and a sum
        tolerances = tolerance + 2 * positions * UNIT[torch.float32]  # the angle is rounded to float32
        expected = self.far(self.vectors, positions)
        off = (whole - expected).norm(dim=-1) / expected.norm(dim=-1)  # [q and k, HEADS, T]
        wrong = (off > tolerances).any(-1)
        if not wrong.any():
            return None
        if wrong[0, 0] and off[0, 0].max() < 0.03:
            return fail(f"A vector does not keep its length in {_name(dtype)}. {ROUNDED}")
        if wrong[0, 0]:
            # What the first positions show says where it begins: the other measure covers them all.
            early = (whole[0, 0] - self.near(self.vectors[0, 0], positions)).norm(dim=-1) / expected[0, 0].norm(dim=-1)
            onset = int((early > tolerances).int().argmax())
            return fail(
                f"The angle is not the position times a fixed number, from about position {onset} on. Likely a table "
                f"that ends there or starts again; at 0: the dims that do not rotate are changed. Or: {ANGLES}"
            )
        if not wrong[0].any() and wrong[1].all():
            return fail("k is not rotated as q is: scores depend on more than the distance. Rotate both, in one way.")
        return fail("Some heads rotate and others do not, or otherwise. Likely `x[:, :n]`, which cuts heads.")

    def _rounding(self, dtype: torch.dtype, evidence: dict[str, Any]) -> Verdict | None:
        """A 16-bit result against the measured rotation, in roundings of the dtype."""
        if dtype == torch.float32:
            return None
        off = []
        for rotation, start in ((self.near, 0), (self.far, self.length - WINDOW)):
            y = self.turn(dtype, start, WINDOW)
            x = self.vectors[:, :, start : start + WINDOW]
            dims = rotation.results.flatten()
            expected = rotation(x, torch.arange(start, start + WINDOW))[..., dims]
            off.append((y[..., dims] - expected).norm(dim=-1) / expected.norm(dim=-1) / UNIT[dtype])
        first_few, near, far = (float(each.square().mean().sqrt()) for each in (off[0][:, :, :8], *off))
        evidence[f"{_name(dtype)}, roundings near and far"] = [round(near, 2), round(far, 2)]
        allowed = ROUNDINGS + self.length * UNIT[torch.float32] / UNIT[dtype]
        if max(near, far) <= allowed:
            return None
        place = f"{number(near)} roundings off below position {WINDOW}, {number(far)} below {self.length}"
        why = ANGLES if first_few <= allowed else ROUNDED  # angles: it grows with the position
        return fail(f"In {_name(dtype)} what rotates is {place}. {why}")

    def _alone(self, near: Tensor, whole: Tensor) -> Verdict | None:
        """A few last tokens by themselves, as after a cache."""
        if (near - whole[:, :, :WINDOW]).abs().max() > 0.02:
            self.cautions.append("A longer sequence turns the same positions otherwise (dynamic scaling).")
        for count in (1, 5):
            alone = self.turn(self.dtypes[0], self.length - count, count)
            if (alone - whole[:, :, -count:]).abs().max() > 0.02:
                return fail(
                    f"Given alone, as after a cache, position {self.length - count} is rotated otherwise. Likely "
                    "`positions` is not used, or counted anew, or the frequencies depend on how long the call is."
                )
        return None

    def _rows_apart(self) -> Verdict | None:
        """Two rows that begin at positions of their own."""
        starts, count = (0, 5), 16
        positions = torch.tensor(starts)[:, None] + torch.arange(count)
        given = torch.stack([self.vectors[:, :, start : start + count] for start in starts], 1)  # [q and k, row, ...]
        try:
            rows = torch.stack(self._call(given.to(self.dtypes[0]), positions)).double()
        except (Raised, CannotJudge, RuntimeError):  # code for one row
            rows = torch.zeros(0)
        if rows.shape != given.shape:
            self.cautions.append("Judged for one row: two rows raise, or change their shape.")
            return None
        off = [rows[:, row] - self.turn(self.dtypes[0], start, count) for row, start in enumerate(starts)]
        if max(float(each.abs().max()) for each in off) < 0.02:
            return None
        return fail(
            "Of two rows with positions of their own the second is rotated otherwise than alone. Likely the first "
            "row's positions, or its start, serve all rows. Prompts that are padded on the left have other positions "
            "in each row."
        )

    def _frequencies(self, moves: Tensor, evidence: dict[str, Any]) -> Verdict | None:
        """Which dims rotate, which way, and how fast."""
        speed = self.far.speed
        evidence["turns"] = "forward" if speed[0] > 0 else "backward"
        if not moves[: int(moves.sum())].all():
            return inconclusive("The dims that rotate are not the first ones. In most models they are.")
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
        if len(speed) * 2 < self.head_dim:
            self.cautions.append(f"Only the first {2 * len(speed)} dims rotate (partial rotary).")
        evidence["base"] = base = self._base()
        fastest = float(speed.abs().max())
        if self.theta is None and base > 0 and not _usual(base, fastest):
            self.cautions.append(
                f"Hardly any model has frequencies of base {base:.5g} that begin at {number(fastest)}. {EXPONENT}. "
                "theta= decides."
            )
        if self.theta is None:
            return None
        expected = self.theta ** (-torch.arange(len(speed)) / len(speed))
        if (speed.abs() - expected).abs().max() * self.length > 0.1:  # radians at the last position
            return fail(f"Not the frequencies of theta = {self.theta:g}, but of base {base:.5g}. {EXPONENT}.")
        return None

    def _base(self) -> float:
        """What the frequencies are powers of; NaN if each is not the one before times the same number."""
        speed = self.far.speed.abs()
        clear = speed[speed * self.length > 0.05]  # slower ones cannot be measured well
        ratios = clear.log().diff()
        if len(clear) < 2 or (ratios - ratios.mean()).abs().max() > 1e-3:
            return math.nan
        return float(torch.exp(-ratios.mean() * len(speed)))


def _usual(base: float, fastest: float) -> bool:
    """Whether the base is 10,000 or more and has two digits with zeros behind, as text models' have, and the first
    frequency is 1, or 1 / 2, 1 / 3 ... where positions are interpolated."""
    round_base = abs(base / float(f"{base:.1e}") - 1) < 1e-3
    return base > 9990 and round_base and abs(1 / fastest - round(1 / fastest)) < 1e-3


def _all_numbers_of(dtype: torch.dtype, speed: Tensor) -> bool:
    """Whether frequencies are exactly numbers of a 16-bit dtype, and not because they are powers of two."""
    telling = speed[(speed > 0.003) & (speed.frexp().mantissa != 0.5)]
    off = (telling - telling.to(dtype).double()).abs() / telling
    return len(telling) >= 4 and bool(off.max() < 0.02 * UNIT[dtype])
