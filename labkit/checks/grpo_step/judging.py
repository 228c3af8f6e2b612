"""What a reading and its explanation mean: remarks in the field's words, a variant, and a verdict.

A remark is a mistake, leaves something open, or is a caution. One mistake makes False; without one,
something open makes None; cautions alone leave True.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from labkit.common import number

from . import forms
from .explaining import (
    ALIKE,
    SIGNIFICANT,
    Explanation,
    Situation,
    clipped_alone,
    explain,
    promised_kl,
    rows_apart,
    where_there_is_weight,
)
from .picture import TokenWeight
from .probe import GROUP, Call, prompt_lengths
from .reading import FAINT, Reading

Kind = Literal["mistake", "open", "caution"]
VARIANTS = [
    "GRPO",
    "Dr. GRPO",
    "DAPO",
    "BNPO",
    "GSPO",
    "LUSPO",
    "CISPO",
    "SAPO",
    "GMPO",
    "VESPO",
    "DPPO",
    "REINFORCE",
    "REINFORCE++",
    "RLOO",
]
OF_RATIO = {
    "sequence ratio (GSPO)": "GSPO",
    "sequence ratio over the padded length": "GSPO",
    "capped weight (CISPO)": "CISPO",
    "weight clamped on both sides (CISPO)": "CISPO",
    "weight capped at epsilon_high (CISPO)": "CISPO",
    "SAPO's gate": "SAPO",
    "geometric mean of clipped ratios (GMPO)": "GMPO",
    "VESPO's weight": "VESPO",
    "probability mask (DPPO)": "DPPO",
    "probability mask, either way": "DPPO",
    "none: log-probs": "REINFORCE",
    "ratio without a clip": "REINFORCE",
    "weight truncated at 2": "REINFORCE",
    "ratio of the whole sequence": "RLOO",
}
RATIO_LINE = r"ratio\w* *= or exp\( or adv\w*.*\*|\* *adv"
# where a loss gets its sign: a surrogate's line, before the one that only returns it
SURROGATE_LINE = (
    r"torch\.(min|max|minimum|maximum)\( or = *-|return *-|-\( "
    r"or adv\w*\W+\*|\* *-?\(?adv or adv\w* *="
)
OF_DIVISOR = {
    "sequences": "GRPO",
    "sequences that count": "GRPO",
    "sequences of each micro-batch": "GRPO",
    "sequences, length twice": "GRPO",
    "sequences, with the prompt": "GRPO",
    "tokens": "DAPO",
    "tokens, left-out ones too": "DAPO",
    "tokens of each group": "DAPO",
    "times the length": "DAPO",
    "tokens of each micro-batch": "BNPO",
    "constant": "Dr. GRPO",
}


@dataclass(frozen=True)
class Remark:
    kind: Kind
    text: str
    look_for: str = ""


@dataclass
class Finding:
    """What is known of one optimizer step, or of a loss."""

    remarks: list[Remark] = field(default_factory=list)
    variant: str = ""
    parts: dict[str, str] = field(default_factory=dict)
    scale: float = float("nan")
    error: float = float("nan")
    tokens: list[TokenWeight] = field(default_factory=list)
    explanation: Explanation | None = None

    @property
    def passed(self) -> bool | None:
        kinds = {remark.kind for remark in self.remarks}
        if "mistake" in kinds:
            return False
        if "open" in kinds:
            return None
        return True

    def add(self, kind: Kind, text: str, look_for: str = "") -> None:
        self.remarks.append(Remark(kind, text, look_for))

    def of(self, *kinds: Kind) -> list[Remark]:
        """Each text once, in order."""
        return list(
            {remark.text: remark for remark in self.remarks if remark.kind in kinds}.values()
        )


def judge(
    reading: Reading,
    calls: Sequence[Call],
    situation: Situation,
    temperature: float,
    rescored: bool = False,
    known: Explanation | None = None,
) -> Finding:
    """One backward pass: how the tokens were scored, then which loss it is.

    rescored  the policy in training has scored these rows once more, without a graph
    known     the explanation, where somebody has it already
    """
    finding = Finding()
    _how_the_model_was_called(finding, calls)
    whole = max(float(reading.weights.abs().max()), float(reading.prompt.abs().max()))
    if reading.stray > reading.tolerance and not _significant(reading.prompt, whole):
        text = (
            f"{number(100 * reading.stray)} % of the gradient is at tokens that belong to no row."
        )
        finding.add("open", f"{text} Are token ids changed on their way to the model?")
    if not reading.clear:
        finding.add(
            "open",
            f"{number(100 * reading.left)} % of the gradient is not that of the log-probs of "
            "these tokens, at any "
            "temperature: other tokens are scored, or another term is in the loss.",
        )
    elif whole:
        _scoring(finding, reading, temperature)
        _prompt(finding, reading, whole)
        _entropy(finding, reading, situation)
        _loss(finding, reading, situation, rescored, known)
    finding.tokens = _table(reading.weights, finding.explanation, situation)
    return finding


def _significant(weights: Tensor, whole: float) -> bool:
    return float(weights.abs().max()) > 100 * FAINT * whole


def _how_the_model_was_called(finding: Finding, calls: Sequence[Call]) -> None:
    # a forward pass on other rows, as of a prompt alone, says nothing
    known = [call for call in calls if call.rows]
    if any(call.without_prompt for call in calls):
        text = "Completions are scored without their prompt: the model sees the completion alone."
        finding.add("mistake", text, r"model\(")
    if any(call.pads_seen and call.has_mask for call in known):
        text = "The attention mask lets real tokens see the pads before them."
        finding.add("mistake", text, r"attention_mask|mask")
    elif any(call.pads_seen for call in known):
        finding.add(
            "open",
            "The model is called without an attention mask, and rows have pads on the left: their "
            "tokens "
            "see the pads. Right only where no row has any.",
            r"model\(",
        )
    if any(call.tokens_hidden for call in known):
        text = "The attention mask hides real tokens of prompt or completion."
        finding.add("mistake", text, r"attention_mask|mask")
    positions = {call.positions for call in known}
    if "wrong" in positions:
        text = "`position_ids` do not count a row's real tokens one by one."
        finding.add("mistake", text, r"position")
    elif positions & {"none", "shifted"}:
        finding.add(
            "caution",
            "With pads on the left and no `position_ids` from 0 a rotary model is right, and one "
            "with "
            "absolute positions (GPT-2) is wrong.",
        )


def _scoring(finding: Finding, reading: Reading, temperature: float) -> None:
    if reading.rounded:
        finding.add("caution", f"The logits go through {reading.rounded}: weights are read to 3 %.")
    if reading.shift == 1:
        text = "Logits and tokens are off by one: a token is scored with the logits that follow it."
        finding.add("mistake", text, r"logits|\[:, *:-1|\[:, *1:")
    elif reading.shift == -1:
        text = (
            "Logits and tokens are off by one: a token is scored with the logits two places "
            "before it."
        )
        finding.add("mistake", text, r"logits|\[:, *:-1|\[:, *1:")
    found = reading.temperature
    if abs(found / temperature - 1) < 5e-3:
        return
    line = r"temperature|logits|log_softmax"
    # 1 is what is said when nothing is said: then the loss may well be right
    if temperature == 1:
        finding.add(
            "open",
            f"The logits are divided by {number(found)} and temperature = 1 was said: if tokens "
            "are drawn at "
            f"{number(found)}, say temperature={number(found)}.",
            line,
        )
    elif abs(found - 1) < 5e-3:
        text = f"The temperature {number(temperature)} is not applied when tokens are scored."
        finding.add("mistake", text, line)
    elif abs(found / temperature**2 - 1) < 5e-3:
        text = f"The temperature {number(temperature)} is applied twice when tokens are scored."
        finding.add("mistake", text, line)
    else:
        text = (
            f"Tokens are scored at the temperature {number(found)}, and drawn at "
            f"{number(temperature)}."
        )
        finding.add("mistake", text, line)


def _prompt(finding: Finding, reading: Reading, whole: float) -> None:
    if _significant(reading.prompt, whole):
        text = "Prompt tokens have weight: another mask stands where the completion's belongs."
        finding.add("mistake", text, forms.MASK_LINE)


def _entropy(finding: Finding, reading: Reading, situation: Situation) -> None:
    of_tokens = reading.entropies
    visible = 100 * FAINT
    if reading.rounded:
        visible = 10 * reading.tolerance
    if float(of_tokens.abs().max()) < visible * float(reading.weights.abs().max()):
        return
    for divisor in forms.DIVISORS:
        share = divisor.make(situation.mask, situation.layout) * situation.mask * situation.here
        factor = float((of_tokens * share).sum() / share.square().sum())
        if float((of_tokens - factor * share).norm() / of_tokens.norm()) > 20 * reading.tolerance:
            continue
        if factor < 0:
            text = f"There is an entropy bonus of weight {number(-factor)}."
        else:
            text = f"Entropy is a cost, of weight {number(factor)}: a bonus has the other sign."
            finding.add("open", text, r"entrop")
            return
        finding.add("caution", text)
        return
    finding.add("open", "Entropy is part of the loss, weighted in no known way.")


def _loss(
    finding: Finding,
    reading: Reading,
    situation: Situation,
    rescored: bool,
    known: Explanation | None,
) -> None:
    explanation, fits = known, True
    if explanation is None:
        explanation, fits = explain(reading.weights, situation, reading.tolerance)
    assert explanation is not None
    of_tokens = explanation.ratio.name in ("clip", "dual clip at 3", "dual clip at 2")
    # rows without any weight look like another clip, too
    doubtful = not fits or (explanation.clip != situation.clip and of_tokens)
    if doubtful and _something_is_left_out(finding, reading, situation, rows_alone=fits):
        return
    finding.explanation, finding.error = explanation, explanation.error
    finding.parts, finding.scale = parts_of(explanation), explanation.scale
    if not fits:
        _what_is_left(finding, reading, situation)
        return
    finding.variant = variant_of(explanation)
    for part in explanation.mistakes:
        if part not in (explanation.kl_mask, explanation.kl):
            finding.add("mistake", part.says, part.look_for)
    _ratio(finding, explanation, situation, rescored)
    for part in explanation.parts:
        judged_apart = part in (explanation.ratio, explanation.kl) or part.name == forms.BATCH_MEAN
        if part.kind == "caution" and not judged_apart:
            finding.add("caution", part.says)
    _kl(finding, explanation, situation)
    _length(finding, explanation, situation)


def _something_is_left_out(
    finding: Finding, reading: Reading, situation: Situation, rows_alone: bool
) -> bool:
    """Whether the tokens that have weight are explained, and others have none. Says which."""
    found = where_there_is_weight(reading.weights, situation, reading.tolerance)
    if found is None:
        return False
    explanation, left_out = found
    heavy = reading.weights.abs() > 1e-3 * reading.weights.abs().max()
    rows = [
        row
        for row in situation.layout.rows
        if bool(left_out[row].any()) and not bool(heavy[row].any())
    ]
    tokens = int(left_out.sum() - left_out[rows].sum())
    if rows_alone and tokens:
        return False
    finding.explanation, finding.error = explanation, explanation.error
    finding.parts, finding.scale = parts_of(explanation), explanation.scale
    # an update whose gradients are overwritten has those of its last micro-batch
    last = situation.layout.parts[-1]
    if (
        rows
        and not tokens
        and sorted(rows + last) == situation.layout.rows
        and len(situation.layout.parts) > 1
    ):
        finding.parts["mask"] = "the last micro-batch alone"
        text = (
            "Only the last micro-batch has a gradient: those before it are overwritten, or cleared."
        )
        finding.add("mistake", text, r"zero_grad|\.grad *=|backward")
        return True
    what = []
    if rows:
        what.append(rows_named(rows))
    if tokens:
        others = " of other rows" if rows else ""
        plural = "s" if tokens > 1 else ""
        what.append(f"{tokens} token{plural}{others}")
    finding.parts["mask"] = f"without {' and '.join(what)}"
    text = f"Something leaves out {' and '.join(what)}; all else is explained."
    line = r"filter|where|relu or \bmask"
    values = explanation.advantage.make(situation)
    sign = values.reshape(len(values), -1).mean(1).sign()  # [B]
    bad = [row for row in situation.layout.rows if sign[row] < 0]
    if not tokens and rows == bad:
        text = "Rows with a negative advantage have no weight: nothing is learned from bad answers."
        line = r"relu|adv\w*.*clamp|clamp.*adv|where or torch\.(min|max|minimum|maximum)\("
    good = [row for row in situation.layout.rows if sign[row] > 0]
    if not tokens and rows == good:
        line = r"torch\.(min|max|minimum|maximum)\( or relu|clamp"
        text = (
            "Rows with a positive advantage have no weight: nothing is learned from good answers."
        )
    rule = _rule_of_ratio(left_out, heavy, sign > 0, situation)
    if tokens and not rows and rule:
        finding.parts["mask"] = "completion"
        finding.parts["ratio"] = f"no weight {rule}"
        text = f"Tokens have no weight {rule}; all else is explained. Is the clip another one?"
        line = forms.CLAMP_LINE
    finding.add("open", text, line)
    return True


def _rule_of_ratio(left_out: Tensor, heavy: Tensor, good: Tensor, situation: Situation) -> str:
    """Whether the tokens that are left out are those with a ratio above or below some number."""
    ratio = (situation.logps - situation.old).exp()
    counts = situation.mask * situation.here > 0
    rules = []
    for name, rows in {"good": good, "bad": ~good}.items():
        side = rows[:, None]
        out, kept = ratio[left_out & counts & side], ratio[heavy & counts & side]
        if not len(out):
            continue
        if len(kept) < 2:
            return ""
        if float(out.min()) > float(kept.max()):
            rules.append(f"where a {name} answer's ratio is {number(float(out.min()))} or more")
        elif float(out.max()) < float(kept.min()):
            rules.append(f"where a {name} answer's ratio is {number(float(out.max()))} or less")
        else:
            return ""
    return ", and ".join(rules)


def parts_of(explanation: Explanation) -> dict[str, str]:
    kl = "none"
    if explanation.kl is not None:
        kl = f"{number(explanation.kl_weight)} × {explanation.kl.name}"
    return {
        "advantage": explanation.advantage.name,
        "ratio": explanation.ratio.name,
        "mask": explanation.mask.name,
        "divisor": explanation.divisor.name,
        "kl": kl,
    }


def variant_of(explanation: Explanation) -> str:
    ratio, divisor = explanation.ratio.name, explanation.divisor.name
    advantage = explanation.advantage.name
    if "REINFORCE++" in advantage or "whitened over the batch's tokens" in advantage:
        return "REINFORCE++"
    if ratio == "sequence ratio (GSPO)" and divisor == "constant":
        return "LUSPO"
    if "leave one out" in advantage and ratio in ("none: log-probs", "ratio without a clip"):
        return "RLOO"
    return OF_RATIO.get(ratio) or OF_DIVISOR[divisor]


def _what_is_left(finding: Finding, reading: Reading, situation: Situation) -> None:
    """Nothing fits: what can still be said."""
    explanation = finding.explanation
    assert explanation is not None
    if _only_some_rows(finding, reading, situation):
        _forget_the_nearest(finding)
        return
    within_rows = rows_apart(reading.weights, situation, 10 * reading.tolerance)
    if within_rows is not None:
        name, factors = within_rows
        _forget_the_nearest(finding)
        finding.parts["ratio"] = name
        if _counted_several_times(finding, factors, situation):
            return
        rows = ", ".join(number(1000 * factor) for factor in factors.tolist())
        what = f"Within each row the weights are those of {name}"
        if name == ALIKE:
            what = "Within each row all tokens weigh alike: no token has a ratio of its own"
        finding.add(
            "open",
            f"{what}; from row to row they follow no known advantage and divisor. "
            f"1,000 times advantage × divisor of each row: {rows}.",
        )
        return
    if explanation.error > NEAR:
        _forget_the_nearest(finding)
        finding.add(
            "open",
            "No known combination of parts gives these weights, nor comes near: the nearest leaves "
            f"{number(100 * explanation.error)} %.",
        )
        return
    difference = (reading.weights - explanation.expected.view_as(reading.weights)).abs()
    row, token = divmod(int(difference.argmax()), difference.shape[1])
    finding.add(
        "open",
        "No known combination of parts gives these weights. The nearest is shown, "
        f"{number(100 * explanation.error)} "
        f"% off, the most at token {token + 1} of row {row + 1}.",
    )


NEAR = 0.1


def _forget_the_nearest(finding: Finding) -> None:
    """The nearest combination is so far off that its parts mean nothing."""
    finding.parts = dict.fromkeys(finding.parts, "unknown")
    finding.explanation, finding.scale = None, float("nan")


def _only_some_rows(finding: Finding, reading: Reading, situation: Situation) -> bool:
    """Whether rows have no weight that a clip would have left some. Says which, and their place."""
    layout = situation.layout
    heavy = (reading.weights.abs() > 1e-3 * reading.weights.abs().max()).any(1)
    meant = (clipped_alone(situation).abs() > 0).any(1)
    used = [row for row in layout.rows if bool(heavy[row])]
    unused = [row for row in layout.rows if bool(meant[row]) and not bool(heavy[row])]
    if not unused or len(unused) < len(used):
        return False
    line = r"\bloss\w* *=|\+= or backward|zero_grad"
    last_part = set(layout.parts[-1])
    of_several_rows = max(len(part) for part in layout.parts) > 1 and len(layout.parts) > 1
    if of_several_rows and set(used) <= last_part and not last_part >= set(unused):
        text = (
            "Only the last micro-batch has a gradient: those before it are overwritten, or cleared."
        )
        finding.add("mistake", text, r"zero_grad|\.grad *=|backward")
        return True
    verb = "has" if len(used) == 1 else "have"
    text = f"Only {rows_named(used)} {verb} a gradient"
    places = {
        "the last of the batch": layout.rows[-1:],
        "the last of each group": [group[-1] for group in layout.groups],
        "the first of the batch": layout.rows[:1],
        "the first of each group": [group[0] for group in layout.groups],
        "every other row": layout.rows[1::2],
        "every other row, from the first": layout.rows[::2],
        "the first group": layout.groups[0],
        "the last group": layout.groups[-1],
    }
    for place, rows in places.items():
        if used == rows:
            text += f", {place}"
            break
    if "last" in text:
        text += ": a loop that overwrites its loss where it is to add to it has only the last"
    finding.add("open", f"{text}.", line)
    return True


def _counted_several_times(finding: Finding, factors: Tensor, situation: Situation) -> bool:
    """Whether each row weighs a whole number of times what a published loss gives it."""
    layout, mask = situation.layout, situation.mask
    rows = layout.rows
    for divisor in forms.DIVISORS:
        if divisor.wrong or divisor.name == "constant":
            continue
        share = (divisor.make(mask, layout) * mask).sum(1)
        for advantage in forms.ADVANTAGES:
            values = advantage.make(situation)
            if advantage.wrong or values.dim() > 1:
                continue
            times = (factors / (values * share))[rows]
            whole = times.round()
            # 1 is the least, and an exact hit of so many rows is no chance
            if float((times - whole).abs().max()) > 5e-3 or float(whole.min()) < 1:
                continue
            if float(whole.max()) > 16 or float(whole.max()) == float(whole.min()):
                continue
            finding.parts |= {"advantage": advantage.name, "divisor": divisor.name}
            counts = ", ".join(str(int(one)) for one in whole.tolist())
            text = f"Rows count several times: {counts} times, by row."
            order = [row for part in layout.parts for row in part]
            of_row = dict(zip(rows, whole.tolist(), strict=True))
            in_order = [of_row[row] for row in order]
            if len(layout.parts) > 1 and in_order == sorted(in_order, reverse=True):
                text += " The earlier a micro-batch, the more: backward goes through a sum so far."
                finding.add("mistake", text, r"backward")
            else:
                finding.add("open", text, r"backward|sample|index")
            return True
    return False


def _ratio(
    finding: Finding, explanation: Explanation, situation: Situation, rescored: bool
) -> None:
    ratio = explanation.ratio
    advantage = explanation.advantage
    plain = OF_RATIO.get(ratio.name) == "REINFORCE"
    if advantage.name == forms.BATCH_MEAN or (plain and advantage.name == "raw rewards"):
        # Williams' REINFORCE has any baseline or none; GRPO has not
        finding.remarks = [one for one in finding.remarks if one.text != advantage.says]
        text = f"{advantage.says} Plain REINFORCE does so"
        if plain:
            text += "; say expect='REINFORCE' if it is meant"
        finding.add("open", f"{text}.", forms.GROUP_LINE)
    # The batch has the sampler's log-probs; those of the present policy make every ratio 1.
    if ratio.name == "none: log-probs" and rescored:
        finding.add(
            "mistake",
            "The old log-probs are recomputed by the policy that is being trained: the ratio "
            "is 1, and "
            "nothing is ever clipped. Score once, when the tokens are drawn.",
            r"no_grad|inference_mode|old",
        )
        return
    if ratio.name == "ratio of the whole sequence" and situation.clip[1] < 0.05:
        text = "The sequence's log-ratio is not divided by its length, and the clip is GSPO's."
        finding.add("mistake", text, r"ratio|sum\(")
        return
    if ratio.name == "ratio of the whole sequence" and "leave one out" not in advantage.name:
        text = f"{ratio.says} Say expect='RLOO' if it is meant."
        finding.add("open", text, r"ratio\w* *= or sum\(")
        return
    if ratio.name == "ratio without a clip":
        text = f"{ratio.says} Say expect={finding.variant!r} if plain importance weights are meant."
        finding.add("open", text, forms.CLIP_LINE)
        return
    low, high = explanation.clip
    if ratio.name == "clamp without the min" and (low > 0.5 or high > 1):
        finding.remarks = [one for one in finding.remarks if one.text != ratio.says]
        finding.add(
            "caution", "Ratios outside of a wide range have no gradient either way: IcePop's mask."
        )
    if explanation.clip != situation.clip:
        _another_clip(finding, explanation.clip, situation)
    if ratio.kind == "caution":
        finding.add("caution", ratio.says)


def _ratios_of_the_batch(finding: Finding, situation: Situation) -> tuple[str, str]:
    """The smallest and the largest ratio, of tokens or of rows: farther out nothing is seen."""
    counts = situation.mask * situation.here
    log_ratio = (situation.logps - situation.old) * counts
    if "sequence" in finding.parts["ratio"]:
        log_ratio = log_ratio.sum(1) / counts.sum(1).clamp(min=1)
    ratio = log_ratio.exp()
    return f"{float(ratio.min()):.4g}", f"{float(ratio.max()):.4g}"


def _another_clip(finding: Finding, clip: tuple[float, float], situation: Situation) -> None:
    low, high = clip
    below, above = situation.clip
    if low <= 0 or high <= 0:
        text = f"It clips somewhere near {number(1 - low)} and {number(1 + high)}"
        finding.add("mistake", f"{text}: 1 is not between the two.", forms.CLIP_LINE)
        return
    least, most = _ratios_of_the_batch(finding, situation)
    if low >= 1:
        text = f"No lower bound acts: down to a ratio of {least} no bad answer is clipped."
        finding.add("open", text, forms.CLAMP_LINE)
    if high > 1e6:
        text = f"No upper bound acts: up to a ratio of {most} no good answer is clipped."
        finding.add("open", text, forms.CLAMP_LINE)
    if low >= 1 or high > 1e6:
        return
    said = f"clip = ({number(below)}, {number(above)}) was said"
    text = f"It clips somewhere near {number(1 - low)} and {number(1 + high)}, where {said}."
    if not situation.clip_said:
        finding.add("caution", text.replace("was said", "is assumed"))
        return
    # a clip is known no closer than the ratios are that lie on both sides of it
    if (below - above) * (low - high) < 0:
        text += " Are the two bounds exchanged?"
    finding.add("open", text, forms.CLAMP_LINE)


def _kl(finding: Finding, explanation: Explanation, situation: Situation) -> None:
    kl, beta, weight = explanation.kl, situation.beta, explanation.kl_weight
    if kl is None:
        if not beta or "KL" in explanation.advantage.name:
            return
        size = promised_kl(explanation, situation)
        if SIGNIFICANT * explanation.error > size:
            finding.add(
                "caution",
                f"Whether there is a KL cannot be told: at beta = {number(beta)} it is "
                f"{number(100 * size)} % of the gradient, and {number(100 * explanation.error)} % "
                "is unexplained anyway.",
            )
        else:
            finding.add(
                "mistake",
                f"beta = {number(beta)}, and no KL has a gradient: it is detached, its reference "
                "cancels out, or it is "
                "not in the loss.",
                forms.KL_LINE,
            )
        return
    if kl.name == "k1":
        finding.add("open", kl.says, forms.KL_LINE)
    elif kl.kind == "caution":
        finding.add("caution", kl.says)
    if kl.wrong:
        # prime-rl keeps the policy near the one that sampled, and has no reference
        if kl.says == forms.TO_OLD and (not beta or "probability" in explanation.ratio.name):
            finding.add("caution", "A KL to the old policy keeps the policy near it.")
        else:
            finding.add("mistake", kl.says, kl.look_for)
    # the sign of the policy's term is judged by itself
    if weight < 0:
        text = "The KL has the wrong sign: it pushes the policy away from the reference."
        finding.add("mistake", text, forms.KL_LINE)
        return
    if explanation.kl_mask is not None and explanation.kl_mask.wrong:
        text = f"The KL is not masked as the loss is ({explanation.kl_mask.name})."
        finding.add("mistake", text, forms.KL_LINE)
    if explanation.kl_divisor is not explanation.divisor:
        assert explanation.kl_divisor is not None
        text = f"The KL is divided by {explanation.kl_divisor.name}, the policy's term by "
        finding.add("caution", f"{text}{explanation.divisor.name}.")
        # in tokens of the one divisor for tokens of the other
        weight *= _mean_share(explanation.kl_divisor, situation) / _mean_share(
            explanation.divisor, situation
        )
        if beta and not 0.4 < weight / beta < 2.5:
            text = f"On the average token the KL counts {number(weight / beta)} times beta."
            finding.add("open", text, forms.KL_LINE)
        return
    if not beta:
        text = (
            f"There is a KL ({kl.name}) of weight {number(weight)}; say beta={number(weight)} to "
            "have it judged."
        )
        finding.add("caution", text)
    elif abs(weight / beta - 1) < 0.02:
        return
    elif abs(weight - 1) < 0.02:
        finding.add("mistake", "The KL is not multiplied by beta.", forms.KL_LINE)
    elif abs(weight / beta**2 - 1) < 0.02:
        finding.add("mistake", "The KL is multiplied by beta twice.", forms.KL_LINE)
    else:
        kind: Kind = "caution" if 0.4 < weight / beta < 2.5 else "open"
        finding.add(kind, f"The KL counts {number(weight / beta)} times beta.", forms.KL_LINE)


def _mean_share(divisor: forms.Form, situation: Situation) -> float:
    """By what a divisor multiplies the average token that counts."""
    share = divisor.make(situation.mask, situation.layout) * situation.mask * situation.here
    return float(share.sum() / (situation.mask * situation.here).sum())


def _length(finding: Finding, explanation: Explanation, situation: Situation) -> None:
    scale, parts = explanation.scale, len(situation.layout.parts)
    # least squares always finds some trace of a policy's term
    if explanation.kl is not None and abs(explanation.kl_weight) > 1e4:
        text = "Only the KL has a gradient: the policy's term is detached, or masked as a whole."
        finding.add("mistake", text, r"detach|ratio|no_grad")
        return
    if scale < 0:
        text = "The sign of the loss is flipped: a step makes good answers rarer."
        finding.add("mistake", text, SURROGATE_LINE)
        scale = -scale
    if explanation.divisor.name == "constant":
        # as a multiple of the same by tokens
        scale *= situation.layout.tokens / (situation.layout.count * situation.mask.shape[1])
        with_prompts = situation.layout.tokens + sum(
            prompt_lengths()[row] for row in situation.layout.rows
        )
        if abs(scale * with_prompts / situation.layout.tokens - 1) < 0.003:
            text = (
                "The divisor counts the prompts' tokens too: with longer ones a step gets smaller."
            )
            finding.add("mistake", text, forms.DIVISOR_LINE)
            return
        if abs(scale / situation.layout.tokens - 1) < 0.003:
            finding.add("caution", "The tokens' losses are added up, and divided by nothing.")
            return
    if abs(scale - 1) < 0.01:
        return
    # In one call there is nothing to divide by: a loss may be divided for an accumulation to come.
    if parts > 1 and abs(scale * parts - 1) < 0.01:
        text = f"The loss is divided once too often by the number of micro-batches, {parts}."
        finding.add("mistake", text, forms.DIVISOR_LINE)
    elif parts > 1 and abs(scale / parts - 1) < 0.01:
        text = (
            f"The losses of the {parts} micro-batches are added up, and never divided by their "
            "number."
        )
        finding.add("mistake", text, r"backward|accum|/")
    elif explanation.ratio.name == "none: log-probs" and _is_any(scale, situation.clip[1:]):
        finding.add(
            "caution",
            f"Every weight is {number(scale)}: a CISPO whose epsilon_high is {number(scale)} cuts "
            "them all, because in "
            "TRL that is the cap itself, and no distance from 1.",
        )
    elif explanation.divisor.name == "constant":
        return  # any constant will do
    elif (
        abs(scale - situation.layout.count) < 0.01 * scale
        and "sequences" in explanation.divisor.name
    ):
        finding.add("caution", "The rows' means are added up, not averaged.")
    else:
        finding.add("caution", f"The loss is {number(scale)} times as long as the published one.")


def _is_any(value: float, numbers: Sequence[float]) -> bool:
    return any(abs(value / one - 1) < 0.01 for one in numbers)


def _table(
    weights: Tensor, explanation: Explanation | None, situation: Situation
) -> list[TokenWeight]:
    expected = torch.zeros_like(weights)
    if explanation is not None:
        expected = published_weights(explanation, situation)
    rows = []
    for row in situation.layout.rows:
        for token in range(weights.shape[1]):
            counts = bool(situation.mask[row, token] > 0)
            found, wanted = float(weights[row, token]), float(expected[row, token])
            id_ = int(situation.ids[row, token])
            rows.append(TokenWeight(row, token, id_, counts, found, wanted))
    return rows


def published_weights(explanation: Explanation, situation: Situation) -> Tensor:
    """The weights [B, C] of the same loss with each mistake replaced by the usual form of
    its part.
    """
    usual = {"advantage": 1, "ratio": 0, "mask": 0, "divisor": 0, "kl": 1}
    tables = {
        "advantage": forms.ADVANTAGES,
        "ratio": forms.RATIOS,
        "mask": forms.MASKS,
        "divisor": forms.DIVISORS,
        "kl": forms.KLS,
    }
    chosen: dict[str, forms.Form | None] = {}
    for name, at in usual.items():
        form = getattr(explanation, name)
        if form is not None and form.wrong:
            form = tables[name][at]
        chosen[name] = form
    return explanation.weights_with(chosen, situation)


def leave_one_out_is_expected(finding: Finding, expect: str) -> None:
    """Leave-one-out is G / (G - 1) times the group-mean advantage: the caller's word decides."""
    explanation = finding.explanation
    if expect != "RLOO" or finding.variant != "REINFORCE" or explanation is None:
        return
    if explanation.advantage.name != "group mean":
        return
    finding.variant = "RLOO"
    finding.parts["advantage"] = "leave one out (RLOO)"
    finding.scale *= (GROUP - 1) / GROUP
    meant = "expect='REINFORCE'"  # plain importance weights, asked about
    finding.remarks = [one for one in finding.remarks if meant not in one.text]


def batch_baseline_is_expected(finding: Finding, expect: str) -> None:
    """What is compared over the batch is REINFORCE++'s, or plain REINFORCE's, and nobody else's."""
    advantage = finding.parts.get("advantage")
    if advantage not in (forms.BATCH_NORMALISED, forms.BATCH_MEAN):
        return
    if expect == "REINFORCE" and OF_RATIO.get(finding.parts["ratio"]) == "REINFORCE":
        # any baseline will do, whether the deviation divides it or not
        finding.variant = "REINFORCE"
        meant = "expect='REINFORCE"
        finding.remarks = [one for one in finding.remarks if meant not in one.text]
    elif expect != "REINFORCE++":
        finding.add("mistake", forms.OVER_BATCH, forms.GROUP_LINE)
    elif advantage == forms.BATCH_MEAN:
        text = "The batch's mean is subtracted; REINFORCE++ divides by its deviation, too."
        finding.add("open", text, forms.GROUP_LINE)
        finding.variant = "REINFORCE++"


def follows_the_tokens(finding: Finding, tokens: float, cells: float) -> None:
    """What was taken for a constant is the number of tokens times a factor.

    tokens  how many count
    cells   rows times columns: what the form of a constant divides by
    """
    explanation = finding.explanation
    assert explanation is not None
    if explanation.kl_divisor is explanation.divisor:
        explanation = replace(explanation, kl_divisor=forms.PER_TOKEN)
    # one form's weights in terms of the other's: both are the same for all tokens
    by_tokens = explanation.scale * tokens / cells
    finding.explanation = replace(explanation, divisor=forms.PER_TOKEN, scale=by_tokens)
    finding.parts["divisor"], finding.scale = forms.PER_TOKEN.name, by_tokens
    finding.variant = variant_of(finding.explanation)
    text = f"The loss is {number(abs(by_tokens))} times as long as the published one."
    finding.add("caution", f"{text} Its divisor is the number of tokens times a factor.")


OF_EXPECTED = {"Dr. GRPO": "constant", "DAPO": "tokens", "GRPO": "sequences"}


def expected_remark(finding: Finding, expect: str, is_update: bool) -> Remark | None:
    """What is to be said when the caller expects a variant and this is another one."""
    variant = finding.variant
    if not variant or variant == expect:
        return None
    explanation = finding.explanation
    assert explanation is not None
    if {variant, expect} == {"DAPO", "BNPO"} and not is_update:
        text = (
            "Its divisor is the tokens of the call: DAPO's where the batch is one micro-batch, "
            "else BNPO's."
        )
        return Remark("caution", text)
    if variant == "REINFORCE" and explanation.ratio.name == "none: log-probs":
        of_divisor = OF_DIVISOR[explanation.divisor.name]
        if expect == of_divisor or {of_divisor, expect} == {"DAPO", "BNPO"}:
            text = (
                f"It is {expect} only where the ratio is 1: `old_logps` has no part in the "
                "gradient."
            )
            return Remark("open", text, r"old|ratio")
    divisors = {explanation.divisor.name, OF_EXPECTED.get(expect)}
    if is_update and divisors == {"constant", "tokens"}:
        text = f"It is {expect} but for the length: clipped gradients do not show which."
        return Remark("caution", text)
    parts = explanation
    text = (
        f"Expected {expect}, and it is {variant}: ratio {parts.ratio.name}, divisor "
        f"{parts.divisor.name}, "
        f"advantage {parts.advantage.name}."
    )
    line = forms.DIVISOR_LINE
    if variant in OF_RATIO.values() or expect in OF_RATIO.values():
        line = RATIO_LINE
    return Remark("mistake", text, line)


def named(expect: str) -> str:
    """The variant that a caller means, however it is written. ValueError lists them."""
    plain = {_plain(name): name for name in VARIANTS}
    if _plain(expect) not in plain:
        raise ValueError(f"grpo_step: expect = {expect!r}; expected one of {', '.join(VARIANTS)}")
    return plain[_plain(expect)]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum() or letter == "+")


def rows_named(rows: Sequence[int]) -> str:
    """As people count them, from 1."""
    if len(rows) == 1:
        return f"row {rows[0] + 1}"
    return "rows " + ", ".join(str(row + 1) for row in rows)


def joined(texts: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(texts))
