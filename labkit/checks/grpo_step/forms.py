"""The parts that a GRPO loss is made of: those of published trainers, and the usual mistakes.

A loss is here

    sum over tokens of (surrogate(advantage, ratio) + beta * KL) * mask * divisor

and each of the five parts has a table: a name, the code, and what is to be known about it. The code
is the loss itself, written as its authors write it; its gradient is taken by autograd, so that
nothing is derived by hand. All take `Tokens` and broadcast over leading dimensions.

Sources, as `file:line` of these versions:
    trl         1.16.0, trl/trainer/grpo_trainer.py and rloo_trainer.py
    verl        b178a3cd, verl/trainer/ppo/core_algos.py
    openrlhf    3c3be623, openrlhf/models/loss.py; advantages: ppo_utils/experience_maker.py
    nanochat    92d63d4e, scripts/chat_rl.py
    prime-rl    559b4477, src/prime_rl/trainer/rl/loss.py
    torchtune   bd2a0fc7, torchtune/dev/grpo/loss.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .probe import EOS, GROUP, prompt_lengths


@dataclass(frozen=True)
class Tokens:
    """What a loss knows of its tokens. Log-probs [..., B, C], natural log, float64."""

    logps: Tensor
    old: Tensor
    ref: Tensor
    advantages: Tensor  # [..., B, C]
    mask: Tensor  # [..., B, C] float, 1 = counts
    below: Tensor  # the clip leaves 1 - below to 1 + above
    above: Tensor

    @property
    def log_ratio(self) -> Tensor:
        return self.logps - self.old

    def least(self, ratio: Tensor, bounded: Tensor) -> Tensor:
        """PPO's pessimistic choice between a ratio and its clipped self, as a loss."""
        return -torch.minimum(ratio * self.advantages, bounded * self.advantages)

    def clipped(self, ratio: Tensor) -> Tensor:
        return self.least(ratio, self.bounded(ratio))

    def bounded(self, ratio: Tensor) -> Tensor:
        return ratio.clamp(1 - self.below, 1 + self.above)

    def sequence_mean(self, values: Tensor) -> Tensor:
        """Mean over the counted tokens of each row, for each of its tokens."""
        return (values * self.mask).sum(-1, keepdim=True) / self.mask.sum(-1, keepdim=True).clamp(
            min=1
        )


@dataclass(frozen=True)
class Layout:
    """How the rows of one optimizer step were computed."""

    rows: list[int]  # those of this step
    parts: list[list[int]]  # its micro-batches
    groups: list[list[int]]
    tokens: float  # tokens of these rows' completions, whether a loss leaves some out or not

    @property
    def count(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Situation:
    """One optimizer step, and all that its loss could know. [B, C] float64, on the CPU."""

    logps: Tensor
    old: Tensor
    ref: Tensor
    rewards: Tensor  # [B]
    given: Tensor  # [B]
    mask: Tensor
    ids: Tensor
    layout: Layout
    clip: tuple[float, float]
    beta: float
    clip_said: bool = True

    @property
    def here(self) -> Tensor:
        """[B, 1], 1 for the rows of this step."""
        rows = torch.zeros(len(self.mask), 1, dtype=torch.float64)
        rows[self.layout.rows] = 1
        return rows


@dataclass(frozen=True)
class Form:
    """One form of a part.

    kind      "published"; "caution" (published or harmless, with something to know); "mistake"
    says      the sentence that a report has about it
    look_for  a regular expression: the line of the caller's that it is about
    """

    name: str
    make: Callable[..., Tensor]
    kind: str = "published"
    says: str = ""
    look_for: str = ""
    source: str = ""

    @property
    def wrong(self) -> bool:
        return self.kind == "mistake"


def published(name: str, make: Callable[..., Tensor], source: str, says: str = "") -> Form:
    kind = "caution" if says else "published"
    return Form(name, make, kind, says, source=source)


def mistake(name: str, make: Callable[..., Tensor], says: str, look_for: str = "") -> Form:
    return Form(name, make, "mistake", says, look_for)


# ---- the ratio: per-token surrogate losses


def ppo_clip(t: Tokens) -> Tensor:
    return t.clipped(t.log_ratio.exp())


def dual_clip(t: Tokens, ceiling: float) -> Tensor:
    loss = ppo_clip(t)
    return torch.where(t.advantages < 0, torch.minimum(loss, -ceiling * t.advantages), loss)


def gspo(t: Tokens) -> Tensor:
    return t.clipped(t.sequence_mean(t.log_ratio).exp().expand_as(t.logps))


# A loss with one number a row is spread over the row's tokens: mask and divisor apply to those.


def whole_sequence(t: Tokens) -> Tensor:
    """The ratio of a whole completion, not taken to the power of 1 / length."""
    ratio = (t.log_ratio * t.mask).sum(-1, keepdim=True).exp()
    return t.clipped(ratio.expand_as(t.logps)) / t.mask.sum(-1, keepdim=True).clamp(min=1)


def padded_sequence(t: Tokens) -> Tensor:
    ratio = ((t.log_ratio * t.mask).sum(-1, keepdim=True) / t.logps.shape[-1]).exp()
    return t.clipped(ratio.expand_as(t.logps))


def weighted_log_prob(t: Tokens, weight: Tensor) -> Tensor:
    """The weight is a constant; the gradient goes through the log-prob alone."""
    return -weight.detach() * t.advantages * t.logps


def cispo_upper(t: Tokens) -> Tensor:
    return weighted_log_prob(t, torch.minimum(t.log_ratio.exp(), 1 + t.above))


def cispo_both(t: Tokens) -> Tensor:
    return weighted_log_prob(t, t.bounded(t.log_ratio.exp()))


def truncated_weight(t: Tokens, most: float) -> Tensor:
    return weighted_log_prob(t, t.log_ratio.exp().clamp(max=most))


def cispo_at_epsilon(t: Tokens) -> Tensor:
    """TRL's `epsilon_high` is the cap itself. Below 1 it would be no cap, but a factor."""
    return weighted_log_prob(t, torch.minimum(t.log_ratio.exp(), t.above.clamp(min=1)))


def log_prob(t: Tokens) -> Tensor:
    return -t.advantages * t.logps


def unclipped(t: Tokens) -> Tensor:
    return -t.advantages * t.log_ratio.exp()


def sapo(t: Tokens) -> Tensor:
    # the temperatures that TRL and verl start with
    steepness = torch.where(t.advantages > 0, 1.0, 1.05).double()
    gate = torch.sigmoid(steepness * (t.log_ratio.exp() - 1)) * 4 / steepness
    return -gate * t.advantages


def gmpo(t: Tokens) -> Tensor:
    # clipped in the log, and against the advantage's sign alone
    sign = t.advantages.sign()
    bounded = torch.minimum(t.log_ratio, t.above).maximum(-t.below)
    smaller = sign * torch.minimum(sign * t.log_ratio, sign * bounded)
    return -t.advantages * t.sequence_mean(smaller).exp()


def vespo(t: Tokens) -> Tensor:
    # log 1e-8 to 20, as TRL clamps it; k and lambda are its defaults
    total = (t.log_ratio * t.mask).sum(-1, keepdim=True).clamp(-18.42, 20.0)
    good = t.advantages >= 0
    power = torch.where(good, 2.0, 3.0).double()
    decay = torch.where(good, 3.0, 2.0).double()
    return weighted_log_prob(t, (decay + power * total - decay * total.exp()).exp())


def probability_mask(t: Tokens, most: float = 0.2) -> Tensor:
    """DPPO: a token is dropped where its probability moved too far in the way of its advantage."""
    moved = t.logps.detach().exp() - t.old.exp()
    dropped = torch.where(t.advantages > 0, (moved > most).double(), (moved < -most).double())
    return (1 - dropped) * unclipped(t)


def either_way_mask(t: Tokens, most: float = 0.2) -> Tensor:
    moved = t.logps.detach().exp() - t.old.exp()
    return (moved.abs() <= most).double() * unclipped(t)


def exchanged(t: Tokens) -> Tensor:
    ratio = t.log_ratio.exp()
    return -torch.maximum(ratio * t.advantages, t.bounded(ratio) * t.advantages)


def clamp_alone(t: Tokens) -> Tensor:
    return -t.bounded(t.log_ratio.exp()) * t.advantages


def exchanged_for_bad_answers(t: Tokens) -> Tensor:
    return torch.where(t.advantages < 0, exchanged(t), ppo_clip(t))


def log_ratio_clipped(t: Tokens) -> Tensor:
    return t.clipped(t.log_ratio)


def upside_down(t: Tokens) -> Tensor:
    return t.clipped((-t.log_ratio).exp())


def old_shifted(t: Tokens, by: int) -> Tensor:
    return ppo_clip(replace(t, old=t.old.roll(by, -1)))


def against_reference(t: Tokens) -> Tensor:
    return ppo_clip(replace(t, old=t.ref))


# not a divisor's or a position's: those are kept from 0
CLAMP_LINE = r"clamp\w*\((?!min=[\de.-]*\))|clip\("
CLIP_LINE = r"torch\.(min|max|minimum|maximum)\( or clamp\(|clip\("
OLD_LINE = r"ratio\w* *= or old"
# The order is that of likelihood: of forms that explain a loss equally well the first one counts.
RATIOS = [
    published(
        "clip",
        ppo_clip,
        "arXiv 1707.06347; trl 3112-3120; verl 1216-1226; openrlhf 181-186; torchtune 65-83",
    ),
    published(
        "dual clip at 3",
        lambda t: dual_clip(t, 3.0),
        "arXiv 1912.09729; verl 1230-1236; openrlhf 188-193",
    ),
    published(
        "dual clip at 2", lambda t: dual_clip(t, 2.0), "the same bound; trl's `delta`, 3115-3116"
    ),
    published(
        "sequence ratio (GSPO)",
        gspo,
        "arXiv 2507.18071; trl 3086-3088; verl 1291-1305; openrlhf 170-177",
    ),
    published("capped weight (CISPO)", cispo_upper, "arXiv 2506.13585"),
    published("weight clamped on both sides (CISPO)", cispo_both, "verl 1753-1758"),
    published("weight capped at epsilon_high (CISPO)", cispo_at_epsilon, "trl 3109-3111"),
    published("SAPO's gate", sapo, "arXiv 2511.20347; trl 3121-3124; verl 1360-1388"),
    published("geometric mean of clipped ratios (GMPO)", gmpo, "verl 1683-1695"),
    published("VESPO's weight", vespo, "trl 2972-3018, 3125-3136"),
    published("probability mask (DPPO)", probability_mask, "arXiv 2602.04879; prime-rl 130-144"),
    published("probability mask, either way", either_way_mask, "prime-rl 177-183"),
    published(
        "weight truncated at 2",
        lambda t: truncated_weight(t, 2.0),
        "truncated importance sampling",
        "The ratio is a constant weight, cut at 2: truncated importance sampling.",
    ),
    published(
        "none: log-probs",
        log_prob,
        "nanochat 264-272; verl 1438; torchtune 251-253",
        "The ratio is 1: `old_logps` has no part in the gradient. Right with one update for each "
        "rollout; with "
        "more of them nothing is clipped.",
    ),
    published(
        "ratio without a clip",
        unclipped,
        "importance sampling",
        "The ratio is not clipped at all, however far it is from 1.",
    ),
    published(
        "ratio of the whole sequence",
        whole_sequence,
        "trl, rloo_trainer 1822-1833",
        "The sequence's ratio is not taken to the power of 1 / length: RLOO's in TRL, and not "
        "GSPO's.",
    ),
    mistake(
        "clip with min and max exchanged",
        exchanged,
        "The clip's min and max are exchanged: a token that moved the right way goes on, one that "
        "moved the wrong "
        "way is cut off. The objective takes the minimum, the loss (its negative) the maximum.",
        CLIP_LINE,
    ),
    mistake(
        "min and max exchanged for bad answers",
        exchanged_for_bad_answers,
        "For negative advantages the clip's min and max are exchanged: the minimum is taken of "
        "ratio * advantage, "
        "with its sign, not of the ratios.",
        CLIP_LINE,
    ),
    mistake(
        "clamp without the min",
        clamp_alone,
        "The ratio is clamped on both sides, and nothing takes the minimum with the unclamped "
        "one: a token that "
        "moved the wrong way has no gradient and cannot come back.",
        CLAMP_LINE,
    ),
    mistake(
        "clip of the log-ratio",
        log_ratio_clipped,
        "The log-ratio stands where the ratio belongs: `exp` is missing before the clip.",
        OLD_LINE,
    ),
    mistake(
        "ratio upside down",
        upside_down,
        "The ratio is upside down: exp(old - new) where exp(new - old) belongs.",
        OLD_LINE,
    ),
    mistake(
        "old log-probs shifted by one",
        lambda t: old_shifted(t, 1),
        "The old log-probs are shifted by one token against the new ones.",
        OLD_LINE,
    ),
    mistake(
        "old log-probs shifted by one, the other way",
        lambda t: old_shifted(t, -1),
        "The old log-probs are shifted by one token against the new ones.",
        OLD_LINE,
    ),
    mistake(
        "ratio to the reference",
        against_reference,
        "The ratio is to the reference's log-probs, not to those of the policy that drew the "
        "tokens.",
        OLD_LINE,
    ),
    mistake(
        "sequence ratio over the padded length",
        padded_sequence,
        "The sequence's log-ratio is divided by the padded width, not by its own tokens.",
        r"\.mean\(|\.size\(|\.shape",
    ),
]


# ---- the advantage: [B] or [B, C] from what the step knows


def in_groups(rewards: Tensor) -> Tensor:
    return rewards.view(-1, GROUP)


def centred(rewards: Tensor) -> Tensor:
    rows = in_groups(rewards)
    return (rows - rows.mean(1, keepdim=True)).flatten()


def spread(rewards: Tensor, ddof: int = 1) -> Tensor:
    return in_groups(rewards).std(1, correction=ddof).repeat_interleave(GROUP) + 1e-4


def normalised(rewards: Tensor) -> Tensor:
    return centred(rewards) / spread(rewards)


def leave_one_out(rewards: Tensor) -> Tensor:
    return centred(rewards) * GROUP / (GROUP - 1)


def over_batch(values: Tensor) -> Tensor:
    return (values - values.mean()) / (values.std() + 1e-4)


def over_tokens(rewards: Tensor, mask: Tensor) -> Tensor:
    """Each row weighs as much as it has tokens."""
    lengths = mask.sum(-1)
    mean = (rewards * lengths).sum() / lengths.sum()
    variance = ((rewards - mean).square() * lengths).sum() / lengths.sum()
    return (rewards - mean) / (variance + 1e-8).sqrt()


def tiled(rewards: Tensor, means: bool = False, stds: bool = False) -> Tensor:
    """The groups' statistics repeated as a whole, where each belongs to GROUP adjacent rows."""
    rows = in_groups(rewards)
    mean, std = rows.mean(1), rows.std(1)
    of_rows = {True: mean.repeat(GROUP), False: mean.repeat_interleave(GROUP)}[means]
    scale = {True: std.repeat(GROUP), False: std.repeat_interleave(GROUP)}[stds]
    return (rewards - of_rows) / (scale + 1e-4)


def means_tiled(rewards: Tensor) -> Tensor:
    return rewards - in_groups(rewards).mean(1).repeat(GROUP)


def strided(rewards: Tensor, scale: bool = True) -> Tensor:
    rows = rewards.view(GROUP, -1)
    shifted = rows - rows.mean(0)
    if scale:
        shifted = shifted / (rows.std(0) + 1e-4)
    return shifted.flatten()


def transposed(values: Tensor) -> Tensor:
    """The rows of a group dealt out over the batch."""
    return values.view(-1, GROUP).t().flatten()


def in_pairs(rewards: Tensor) -> Tensor:
    rows = rewards.view(-1, 2)
    return ((rows - rows.mean(1, keepdim=True)) / (rows.std(1, keepdim=True) + 1e-4)).flatten()


def less_kl(s: Situation, logps: Tensor) -> Tensor:
    """The reward of a row, less beta times its k1, summed over its tokens."""
    return s.rewards - s.beta * ((logps - s.ref) * s.mask).sum(1)


def less_kl_of_token(s: Situation, logps: Tensor) -> Tensor:
    return s.given[:, None] - s.beta * (logps - s.ref)


def less_kl_to_come(s: Situation) -> Tensor:
    """Each token is paid for the KL from itself to the end, undiscounted."""
    kl = (s.old - s.ref) * s.mask
    return s.given[:, None] - s.beta * kl.flip(1).cumsum(1).flip(1)


GROUP_LINE = r"\.mean\(|\.view\(|reshape\(|repeat|\.std\("
OVER_BATCH = (
    "The rewards are compared over the whole batch, not within their group: all answers to an easy "
    "prompt are good, all to a hard one bad."
)
BATCH_NORMALISED = "over the batch (REINFORCE++)"
BATCH_MEAN = "over the batch, mean alone"
TILED = (
    "The groups' statistics are tiled (`repeat`) where the rows of a group are adjacent "
    "(`repeat_interleave`): rows are compared with another prompt's."
)
STRIDED = (
    "The groups are taken strided (`view(G, -1)`) where the rows of a group are adjacent "
    "(`view(-1, G)`): rows of different prompts are compared."
)
OTHER_ROWS = "The advantages are those of other rows: their order changes on the way."
ADVANTAGE_LINE = r"advantage.*(repeat|roll|view|reshape|expand|\[) or advantage"
IN_REWARD = "The KL is part of the reward."
# RLOO's is the group mean's times n / (n - 1): the length of the loss tells which it is.
ADVANTAGES = [
    published("as given", lambda s: s.given, "the batch's `advantages`"),
    published(
        "group, divided by its deviation",
        lambda s: normalised(s.rewards),
        "arXiv 2402.03300; trl 2785-2787; verl 323-325; openrlhf 269-270; torchtune recipe 659-661",
    ),
    published(
        "group mean",
        lambda s: centred(s.rewards),
        "arXiv 2503.20783; verl 326-327; openrlhf 267; nanochat 143-145",
    ),
    published(
        "leave one out (RLOO)",
        lambda s: leave_one_out(s.rewards),
        "arXiv 2402.14740; verl 517-522; openrlhf 264",
    ),
    published(
        "group mean, divided by the batch's deviation",
        lambda s: centred(s.rewards) / (s.rewards.std() + 1e-4),
        'trl, scale_rewards="batch"',
    ),
    published(
        "over the batch's tokens (REINFORCE++)",
        lambda s: over_tokens(s.rewards, s.mask),
        "arXiv 2501.03262; verl 605-616; openrlhf 315-328",
    ),
    published(
        "group mean, whitened over the batch's tokens",
        lambda s: over_tokens(centred(s.rewards), s.mask),
        "verl 455-471; openrlhf 315-328",
    ),
    published(
        "group, divided by its biased deviation",
        lambda s: centred(s.rewards) / spread(s.rewards, 0),
        "numpy's std",
        "The deviation is the biased one (divided by n): the advantages are sqrt(n / (n - 1)) "
        "times "
        "as long as with torch's.",
    ),
    published(
        "as given, whitened over the batch",
        lambda s: over_batch(s.given),
        "PPO's advantage normalisation",
        "The given advantages are normalised once more, over the batch.",
    ),
    published(
        "leave one out, KL in the reward",
        lambda s: leave_one_out(less_kl(s, s.old)),
        "trl, rloo_trainer 1669",
        IN_REWARD,
    ),
    published(
        "group, KL in the reward", lambda s: normalised(less_kl(s, s.old)), "verl 1009", IN_REWARD
    ),
    published(
        "as given, less the token's KL",
        lambda s: less_kl_of_token(s, s.old),
        "openrlhf, models/utils.py 98-130",
        IN_REWARD,
    ),
    published(
        "as given, less the token's present KL",
        lambda s: less_kl_of_token(s, s.logps),
        "the same",
        IN_REWARD,
    ),
    published("as given, less the KL to come", less_kl_to_come, "openrlhf 387-420", IN_REWARD),
    published(
        BATCH_NORMALISED,
        lambda s: over_batch(s.rewards),
        "arXiv 2501.03262",
        "REINFORCE++: the rewards are normalised over the whole batch; GRPO compares within the "
        "group.",
    ),
    # the same but for the deviation, which is one number: the length tells which
    published(
        BATCH_MEAN, lambda s: s.rewards - s.rewards.mean(), "REINFORCE with a baseline", OVER_BATCH
    ),
    mistake(
        "raw rewards",
        lambda s: s.rewards,
        "The rewards have no baseline: the group's mean is not subtracted.",
        r"advantage|reward",
    ),
    mistake(
        "not centred",
        lambda s: s.rewards / spread(s.rewards),
        "The rewards are divided by the group's deviation, and its mean is not subtracted.",
        GROUP_LINE,
    ),
    mistake("groups' deviations tiled", lambda s: tiled(s.rewards, stds=True), TILED, GROUP_LINE),
    mistake("groups' means tiled", lambda s: tiled(s.rewards, means=True), TILED, GROUP_LINE),
    mistake(
        "groups' means and deviations tiled",
        lambda s: tiled(s.rewards, means=True, stds=True),
        TILED,
        GROUP_LINE,
    ),
    mistake(
        "groups' means tiled, no deviation", lambda s: means_tiled(s.rewards), TILED, GROUP_LINE
    ),
    mistake("strided groups", lambda s: strided(s.rewards), STRIDED, GROUP_LINE),
    mistake("strided groups, mean alone", lambda s: strided(s.rewards, False), STRIDED, GROUP_LINE),
    mistake(
        "groups of two",
        lambda s: in_pairs(s.rewards),
        "The rewards are compared in groups of two; the batch has groups of four.",
        GROUP_LINE,
    ),
    mistake("advantages one row late", lambda s: s.given.roll(1), OTHER_ROWS, ADVANTAGE_LINE),
    mistake("advantages one row early", lambda s: s.given.roll(-1), OTHER_ROWS, ADVANTAGE_LINE),
    mistake("advantages dealt out", lambda s: transposed(s.given), OTHER_ROWS, ADVANTAGE_LINE),
    mistake(
        "group advantages dealt out",
        lambda s: transposed(normalised(s.rewards)),
        OTHER_ROWS,
        ADVANTAGE_LINE,
    ),
    mistake(
        "absolute value",
        lambda s: s.given.abs(),
        "The sign of the advantage is lost: bad answers are learned like good ones.",
        r"abs\(",
    ),
]


# ---- the mask: [B, C] float


def up_to_end(ids: Tensor) -> Tensor:
    """1 up to the first end token; where there is none, argmax says 0 and only the first
    token counts.
    """
    end = (ids == EOS).long().argmax(1, keepdim=True)
    return (torch.arange(ids.shape[1])[None] <= end).double()


def without(mask: Tensor, column: Tensor) -> Tensor:
    return mask.scatter(1, column, 0.0)


def last(mask: Tensor) -> Tensor:
    return mask.sum(1, keepdim=True).long() - 1


def with_one_pad(mask: Tensor) -> Tensor:
    one_more = (last(mask) + 1).clamp(max=mask.shape[1] - 1)
    return mask.scatter(1, one_more, 1.0)


def ended(ids: Tensor) -> Tensor:
    return (ids == EOS).any(1, keepdim=True).double()


MASK_LINE = r"\bmask\w* *\*?= or \* *\w*mask|mask\w*\)? *\*|masked_ or mask"
MASKS = [
    published("completion", lambda mask, ids: mask, "every trainer"),
    published(
        "completion, cut-off rows left out",
        lambda mask, ids: mask * ended(ids),
        "arXiv 2503.14476; trl, mask_truncated_completions",
        "Rows without an end token have no part in it: overlong filtering.",
    ),
    mistake(
        "without the end token",
        lambda mask, ids: mask * (ids != EOS).double(),
        "The end token has no weight: the model never learns to stop.",
        r"!= or eos|mask\w* *\*?=",
    ),
    mistake(
        "without the last token",
        lambda mask, ids: without(mask, last(mask)),
        "The last token of each completion has no weight: a shift of the mask, or a slice too "
        "short.",
        MASK_LINE,
    ),
    mistake(
        "without the first token",
        lambda mask, ids: without(mask, torch.zeros_like(last(mask))),
        "The first token of each completion has no weight: one shift too many.",
        MASK_LINE,
    ),
    mistake(
        "shifted by one",
        lambda mask, ids: torch.roll(mask, 1, 1) * from_column(mask, 1),
        "The mask is shifted by one token: the first token is out, one pad behind the end is in.",
        MASK_LINE,
    ),
    mistake(
        "one token behind the end",
        lambda mask, ids: with_one_pad(mask),
        "One token behind the end counts.",
        MASK_LINE,
    ),
    mistake(
        "tokens behind the end",
        lambda mask, ids: torch.ones_like(mask),
        "Tokens behind the end count: padding is learned.",
        MASK_LINE,
    ),
    mistake(
        "one token of a row without an end",
        lambda mask, ids: up_to_end(ids),
        "Of a row without an end token only the first token counts: `argmax` is 0 where it finds "
        "nothing.",
        r"argmax|eos",
    ),
    mistake(
        "everything but the end token",
        lambda mask, ids: (ids != EOS).double(),
        "Tokens behind the end count, and the end token itself does not.",
        MASK_LINE,
    ),
]


def from_column(mask: Tensor, first: int) -> Tensor:
    return (torch.arange(mask.shape[1])[None] >= first).double().expand_as(mask)


# ---- the divisor: a weight [..., B, C] for each token, from the mask and the micro-batches


def lengths(mask: Tensor) -> Tensor:
    return mask.sum(-1, keepdim=True).clamp(min=1)


def per_sequence(mask: Tensor, layout: Layout) -> Tensor:
    return 1 / (lengths(mask) * layout.count).expand_as(mask)


def per_token(mask: Tensor, layout: Layout) -> Tensor:
    return torch.ones_like(mask) / mask[..., layout.rows, :].sum((-1, -2), keepdim=True).clamp(
        min=1
    )


def with_prompt(mask: Tensor, layout: Layout) -> Tensor:
    whole = lengths(mask) + torch.tensor(prompt_lengths(), dtype=torch.float64)[:, None]
    return (1 / (whole * layout.count)).expand_as(mask)


def per_drawn_token(mask: Tensor, layout: Layout) -> Tensor:
    """Tokens that the mask leaves out are in the divisor all the same."""
    return torch.ones_like(mask) / layout.tokens


def constant(mask: Tensor, layout: Layout) -> Tensor:
    return torch.ones_like(mask) / (layout.count * mask.shape[-1])


def means_of(mask: Tensor, parts: Sequence[Sequence[int]]) -> Tensor:
    """The mean over parts of their token means."""
    weights = torch.zeros_like(mask)
    for part in parts:
        rows = list(part)
        total = mask[..., rows, :].sum((-1, -2), keepdim=True).clamp(min=1)
        weights[..., rows, :] = 1 / (total * len(parts))
    return weights


def sequence_means_of(mask: Tensor, parts: Sequence[Sequence[int]]) -> Tensor:
    """The mean over parts of their rows' means; parts may have different numbers of rows."""
    weights = torch.zeros_like(mask)
    for part in parts:
        rows = list(part)
        weights[..., rows, :] = 1 / (lengths(mask[..., rows, :]) * len(rows) * len(parts))
    return weights


def kept_rows(mask: Tensor, layout: Layout) -> Tensor:
    """Rows without a counted token are not counted as rows."""
    rows = (mask[..., layout.rows, :].sum(-1, keepdim=True) > 0).double().sum(-2, keepdim=True)
    return (1 / (lengths(mask) * rows.clamp(min=1))).expand_as(mask)


DIVISOR_LINE = r"/ *\(?\w*(mask|len|sum|num|count|size|tok)|\.mean\(|masked_mean or /"
# "sequences that count" and "sequences" differ where a mask leaves whole rows out.
DIVISORS = [
    published(
        "sequences",
        per_sequence,
        "arXiv 2402.03300; trl 3153-3157; verl 1065-1071; openrlhf 34-39; torchtune 257",
    ),
    published("sequences that count", kept_rows, "verl 1068-1070; openrlhf 36-38"),
    published(
        "tokens",
        per_token,
        "arXiv 2503.14476; trl 3168-3173; verl 1055-1058; openrlhf 29-32; prime-rl 394",
    ),
    published("tokens, left-out ones too", per_drawn_token, "trl 3170, num_items_in_batch"),
    published("constant", constant, "arXiv 2503.20783; trl 3163-3167; verl 1072-1076"),
    published(
        "tokens of each micro-batch",
        lambda mask, layout: means_of(mask, layout.parts),
        "trl 3158-3162, bnpo; nanochat 268-269; torchtune 83",
    ),
    published(
        "tokens of each group",
        lambda mask, layout: means_of(mask, layout.groups),
        "nanochat 268-269, one prompt a pass",
    ),
    published(
        "sequences of each micro-batch",
        lambda mask, layout: sequence_means_of(mask, layout.parts),
        "trl 3153-3157, micro-batches of unequal size",
        "The micro-batches have unequal numbers of rows and weigh the same: a row of a smaller one "
        "counts more than a row of a larger one.",
    ),
    mistake(
        "sequences, length twice",
        lambda mask, layout: per_sequence(mask, layout) / lengths(mask),
        "The tokens of a row are divided by its length twice.",
        DIVISOR_LINE,
    ),
    mistake(
        "sequences, with the prompt",
        with_prompt,
        "A row is divided by the length of prompt and completion, where only the completion "
        "counts.",
        DIVISOR_LINE,
    ),
    mistake(
        "times the length",
        lambda mask, layout: lengths(mask) * per_token(mask, layout),
        "A token weighs the more, the longer its row is: multiplied by the length where it is to "
        "be divided.",
        DIVISOR_LINE,
    ),
]


# ---- the KL: per-token terms


def d_of(t: Tokens) -> Tensor:
    return t.ref - t.logps


def k3(d: Tensor) -> Tensor:
    return d.exp() - d - 1


PER_TOKEN = next(form for form in DIVISORS if form.name == "tokens")
UNEQUAL = next(form for form in DIVISORS if form.name == "sequences of each micro-batch")
KL_LINE = r"(?<!approx_)kl\b|\bkl|(?<!approx)_kl|k[123]\(|ref_?log|ref_per"
TO_OLD = "The KL is to the old policy, not to the reference."
REF_SHIFTED = "The reference's log-probs are shifted by one token against the policy's."
# What matters is the gradient: verl's k3+, which has k3's value and k2's gradient, is k2 here.
KLS = [
    published(
        "k2",
        lambda t: d_of(t).square() / 2,
        "joschu.net/blog/kl-approx.html; verl 1885-1886; openrlhf, models/utils.py 82-87",
    ),
    published(
        "k3",
        lambda t: k3(d_of(t)),
        "joschu.net/blog/kl-approx.html; trl 3100-3102; verl 1890-1896; torchtune 85-88",
    ),
    published(
        "k3 × ratio",
        lambda t: k3(d_of(t)) * t.log_ratio.exp(),
        "arXiv 2512.02556; trl 3103-3105, use_bias_correction_kl",
    ),
    published(
        "k3 × sequence ratio",
        lambda t: k3(d_of(t)) * t.sequence_mean(t.log_ratio).exp(),
        "trl 3087, 3105",
    ),
    published("k2 × ratio", lambda t: d_of(t).square() / 2 * t.log_ratio.exp(), "the same"),
    published(
        "k1",
        lambda t: -d_of(t),
        "verl 1879-1880; openrlhf, models/utils.py 80-81",
        "The KL's gradient does not depend on the reference (k1's does not): on the policy's own "
        "tokens it "
        "is zero on average, and holds nothing back. As a loss take k2 or k3.",
    ),
    published(
        "|log-ratio|",
        lambda t: d_of(t).abs(),
        "verl 1882-1883",
        "|new - ref| pulls each token equally hard, however near the reference is.",
    ),
    published("k1 × ratio", lambda t: -d_of(t) * t.log_ratio.exp(), "importance sampling"),
    mistake(
        "k3, arguments swapped",
        lambda t: k3(-d_of(t)),
        "The KL's arguments are swapped: k3 is exp(d) - d - 1 with d = ref - new.",
        KL_LINE,
    ),
    mistake("k3 of the old policy", lambda t: k3(t.old - t.logps), TO_OLD, KL_LINE),
    mistake("k2 of the old policy", lambda t: t.log_ratio.square() / 2, TO_OLD, KL_LINE),
    mistake(
        "k3 of a shifted reference", lambda t: k3(t.ref.roll(1, -1) - t.logps), REF_SHIFTED, KL_LINE
    ),
    mistake(
        "k3 of a reference shifted the other way",
        lambda t: k3(t.ref.roll(-1, -1) - t.logps),
        REF_SHIFTED,
        KL_LINE,
    ),
    mistake(
        "exp(d) alone",
        lambda t: d_of(t).exp(),
        "The KL lacks its term -d: exp(d) - 1 raises the log-prob of every token.",
        KL_LINE,
    ),
]
