"""`checks.grpo_step` on losses that are right and on ones with one mistake each."""

import pickle
import time

import pytest
import step_losses as own
import torch
from step_losses import grpo, scored, update

from labkit.checks import grpo_step

# ---- pieces that are right, in other forms


def of_sequence(logp, batch, mask):
    return ((logp - batch["old_logps"]) * mask).sum(1) / mask.sum(1)


def gspo(logp, batch, advantage, mask, low=0.2, high=0.2):
    ratio = of_sequence(logp, batch, mask).exp()[:, None]
    return own.clipped(ratio, advantage, low, high).expand_as(logp)


def gspo_by_token(logp, batch, advantage, mask):
    """verl's: the value of the sequence's ratio, the gradient of the token's log-prob."""
    log_ratio = logp - logp.detach() + of_sequence(logp, batch, mask).detach()[:, None]
    return own.clipped(log_ratio.exp(), advantage)


def whole_sequence(logp, batch, advantage, mask):
    ratio = ((logp - batch["old_logps"]) * mask).sum(1).exp()[:, None]
    return own.clipped(ratio, advantage).expand_as(logp) / mask.sum(1, keepdim=True)


def cispo(logp, batch, advantage, mask):
    weight = (logp - batch["old_logps"]).exp().clamp(max=1.2)
    return -weight.detach() * advantage * logp


def dual_clip(logp, batch, advantage, mask):
    loss = own.token_clip(logp, batch, advantage, mask)
    return torch.where(advantage < 0, torch.min(loss, -3.0 * advantage), loss)


def clip_higher(logp, batch, advantage, mask):
    return own.clipped((logp - batch["old_logps"]).exp(), advantage, 0.2, 0.28)


def log_probs(logp, batch, advantage, mask):
    return -advantage * logp


def ratio_of_one(logp, batch, advantage, mask):
    return -advantage * (logp - logp.detach()).exp()


def unclipped(logp, batch, advantage, mask):
    return -advantage * (logp - batch["old_logps"]).exp()


def sapo(logp, batch, advantage, mask):
    ratio = (logp - batch["old_logps"]).exp()
    steep = torch.where(advantage > 0, 1.0, 1.05)
    return -torch.sigmoid(steep * (ratio - 1)) * 4 / steep * advantage


def dppo(logp, batch, advantage, mask):
    moved = logp.exp() - batch["old_logps"].exp()
    keep = 1 - torch.where(advantage > 0, moved > 0.2, moved < -0.2).float()
    near = 1e-3 * (logp - batch["old_logps"]) ** 2
    return near - keep * advantage * (logp - batch["old_logps"]).exp()


def gmpo(model, batch):
    logp, mask, advantage = own.score(model, batch), batch["completion_mask"], batch["advantages"]
    sign = advantage.sign()[:, None]
    log_ratio = logp - batch["old_logps"]
    smaller = sign * torch.min(sign * log_ratio, sign * log_ratio.clamp(-0.2, 0.2))
    return -(advantage * ((smaller * mask).sum(1) / mask.sum(1)).exp()).mean()


def leave_one_out(batch):
    rows = batch["rewards"].view(-1, own.G)
    return (rows - (rows.sum(1, keepdim=True) - rows) / (own.G - 1)).view(-1)


def whitened(batch):
    """REINFORCE++: over all tokens of the batch."""
    rewards, length = batch["rewards"], batch["completion_mask"].sum(1)
    mean = (rewards * length).sum() / length.sum()
    variance = ((rewards - mean) ** 2 * length).sum() / length.sum()
    return (rewards - mean) * (variance + 1e-8).rsqrt()


def with_kl_in_the_reward(batch):
    kl = ((batch["old_logps"] - batch["ref_logps"]) * batch["completion_mask"]).sum(1)
    return own.group({"rewards": batch["rewards"] - 0.04 * kl})


def only_ended(batch):
    return batch["completion_mask"] * (batch["completion_ids"] == 1).any(1, keepdim=True)


def entropy(model, batch):
    mask = batch["attention_mask"]
    out = model(batch["input_ids"], attention_mask=mask, position_ids=own.positions(mask))
    logp = out.logits[:, -batch["completion_ids"].shape[1] - 1 : -1].log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def with_entropy(weight):
    def loss(model, batch):
        bonus = own.tokens(entropy(model, batch), batch["completion_mask"], batch)
        return grpo(reduce=own.tokens)(model, batch) - weight * bonus

    return loss


def kl_with_ratio(model, batch):
    logp, mask = own.score(model, batch), batch["completion_mask"]
    ratio = (logp - batch["old_logps"]).exp()
    kl = own.k3(logp, batch["ref_logps"]) * ratio
    return own.all_tokens(own.clipped(ratio, batch["advantages"][:, None]) + 0.04 * kl, mask, batch)


def under_autocast(model, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return grpo(reduce=own.tokens)(model, batch)


def from_hidden_states(model, batch):
    """As a fused kernel has it: the backbone's states, and the head's weight."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    hidden = model.model(ids, attention_mask=mask, position_ids=own.positions(mask)).last_hidden_state
    logits = hidden[:, -batch["completion_ids"].shape[1] - 1 : -1] @ model.lm_head.weight.T
    return logits.log_softmax(-1).gather(-1, batch["completion_ids"][..., None])[..., 0]


KL = {"beta": 0.04}
RIGHT = {  # the loss, what is said of it, its variant
    "grpo": (grpo(), {}, "GRPO"),
    "grpo, k3": (grpo(kl=own.k3), KL, "GRPO"),
    "grpo, k2": (grpo(kl=own.k2), KL, "GRPO"),
    "grpo, own group advantage": (grpo(advantage=own.group), {"expect": "grpo"}, "GRPO"),
    "dapo": (grpo(reduce=own.all_tokens, surrogate=clip_higher), {"clip": (0.2, 0.28)}, "DAPO"),
    "bnpo": (grpo(reduce=own.tokens), {"expect": "BNPO"}, "BNPO"),
    "one batch's tokens are DAPO's": (grpo(reduce=own.tokens), {"expect": "DAPO"}, "BNPO"),
    "dr. grpo": (
        grpo(reduce=own.constant, advantage=lambda batch: own.group(batch, std=False)),
        {"expect": "dr_grpo"},
        "Dr. GRPO",
    ),
    "a clip that nobody said": (grpo(surrogate=clip_higher), {}, "GRPO"),
    "gspo": (grpo(surrogate=gspo), {"expect": "GSPO"}, "GSPO"),
    "gspo by token": (grpo(surrogate=gspo_by_token), {"expect": "GSPO"}, "GSPO"),
    "gspo at the paper's clip": (
        grpo(surrogate=lambda *given: gspo(*given, low=3e-4, high=4e-4)),
        {"clip": (3e-4, 4e-4)},
        "GSPO",
    ),
    "cispo": (grpo(surrogate=cispo, reduce=own.all_tokens), {"expect": "CISPO"}, "CISPO"),
    "dual clip": (grpo(surrogate=dual_clip), {}, "GRPO"),
    "sapo": (grpo(surrogate=sapo), {}, "SAPO"),
    "gmpo": (gmpo, {}, "GMPO"),
    "prime-rl": (grpo(surrogate=dppo, reduce=own.all_tokens), {}, "DPPO"),
    "nanochat": (
        grpo(surrogate=log_probs, reduce=own.tokens, advantage=lambda batch: own.group(batch, std=False)),
        {},
        "REINFORCE",
    ),
    "reinforce": (
        grpo(surrogate=log_probs, advantage=lambda batch: batch["rewards"]),
        {"expect": "REINFORCE"},
        "REINFORCE",
    ),
    "a ratio of 1": (grpo(surrogate=ratio_of_one), {}, "REINFORCE"),
    "importance weights": (grpo(surrogate=unclipped), {"expect": "REINFORCE"}, "REINFORCE"),
    "rloo": (grpo(surrogate=log_probs, advantage=leave_one_out), {"expect": "RLOO"}, "RLOO"),
    "trl's rloo": (grpo(surrogate=whole_sequence, advantage=leave_one_out), {"expect": "RLOO"}, "RLOO"),
    "reinforce++": (grpo(advantage=whitened, reduce=own.tokens), {}, "REINFORCE++"),
    "KL in the reward": (grpo(advantage=with_kl_in_the_reward), KL, "GRPO"),
    "KL times the ratio": (kl_with_ratio, KL, "DAPO"),
    "overlong filtering": (grpo(mask_of=only_ended), {}, "GRPO"),
    "entropy bonus": (with_entropy(0.01), {}, "BNPO"),
    "TRL's logits_to_keep": (grpo(scoring=own.kept_logits), {}, "GRPO"),
    "row by row": (grpo(scoring=own.row_by_row), {}, "GRPO"),
    "padded on the right": (grpo(scoring=own.padded_right), {}, "GRPO"),
    "packed": (grpo(scoring=own.packed), {}, "GRPO"),
    "hidden states": (grpo(scoring=from_hidden_states), {}, "GRPO"),
    "bfloat16 logits": (grpo(scoring=scored(dtype=torch.bfloat16), kl=own.k3), KL, "GRPO"),
    "autocast": (under_autocast, {}, "BNPO"),
    "a temperature": (grpo(scoring=lambda model, batch: own.score(model, batch, 0.7)), {"temperature": 0.7}, "GRPO"),
    "divided for an accumulation to come": (grpo(scale=0.25), {"expect": "GRPO"}, "GRPO"),
}


@pytest.mark.parametrize(("loss", "said", "variant"), RIGHT.values(), ids=RIGHT)
def test_a_right_loss_passes_and_its_variant_is_named(loss, said, variant):
    report = grpo_step(loss, **said)
    assert report and report.variant == variant, report
    assert all(abs(one.found - one.expected) < 0.03 for one in report.tokens) or report.scale != 1


UPDATES = {
    "one step": (update(grpo()), {}, "GRPO"),
    "three steps": (update(grpo(), steps=3), {}, "GRPO"),
    "scored at the beginning": (update(grpo(kl=own.k3), steps=3, recompute="at the beginning"), KL, "GRPO"),
    "one step, scored before it": (update(grpo(), recompute="at the beginning"), {"expect": "GRPO"}, "GRPO"),
    "mini-batches": (update(grpo(), minibatches=2, recompute="at the beginning"), {}, "GRPO"),
    "mini-batches, twice": (update(grpo(), minibatches=2, steps=2, recompute="at the beginning"), {}, "GRPO"),
    "bnpo": (update(grpo(reduce=own.tokens)), {"expect": "BNPO"}, "BNPO"),
    "dapo": (update(grpo(reduce=own.all_tokens), divide=False), {"expect": "DAPO"}, "DAPO"),
    "dr. grpo": (update(grpo(reduce=own.constant)), {"expect": "Dr. GRPO"}, "Dr. GRPO"),
}


@pytest.mark.parametrize(("step", "said", "variant"), UPDATES.values(), ids=UPDATES)
def test_a_right_update_passes_at_each_of_its_steps(step, said, variant):
    report = grpo_step(update=step, **said)
    assert report and report.variant == variant, report


# ---- mistakes, and a word that the report must have for each


def exchanged(logp, batch, advantage, mask):
    ratio = (logp - batch["old_logps"]).exp()
    return -torch.max(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)


def clamp_alone(logp, batch, advantage, mask):
    return -(logp - batch["old_logps"]).exp().clamp(0.8, 1.2) * advantage


def smaller_ratio(logp, batch, advantage, mask):
    """The minimum of the ratios, not of what they are multiplied to."""
    ratio = (logp - batch["old_logps"]).exp()
    return -advantage * torch.min(ratio, ratio.clamp(0.8, 1.2))


def upside_down(logp, batch, advantage, mask):
    return own.clipped((batch["old_logps"] - logp).exp(), advantage)


def shifted_old(logp, batch, advantage, mask):
    return own.clipped((logp - batch["old_logps"].roll(1, 1)).exp(), advantage)


def to_reference(logp, batch, advantage, mask):
    return own.clipped((logp - batch["ref_logps"]).exp(), advantage)


def without_exp(logp, batch, advantage, mask):
    return own.clipped(logp - batch["old_logps"], advantage)


def padded_sequence(logp, batch, advantage, mask):
    ratio = ((logp - batch["old_logps"]) * mask).mean(1).exp()[:, None]
    return own.clipped(ratio, advantage).expand_as(logp)


def detached(logp, batch, advantage, mask):
    return own.clipped((logp - batch["old_logps"]).exp().detach(), advantage)


def rescored(model, batch):
    with torch.no_grad():
        old = own.score(model, batch)
    return grpo()(model, {**batch, "old_logps": old})


def tiled(batch):
    rows = batch["rewards"].view(-1, own.G)
    std = rows.std(1).repeat_interleave(own.G)
    return (batch["rewards"] - rows.mean(1).repeat(own.G)) / (std + 1e-4)


def strided(batch):
    rows = batch["rewards"].view(own.G, -1)
    return ((rows - rows.mean(0)) / (rows.std(0) + 1e-4)).view(-1)


def over_the_batch(batch):
    return (batch["rewards"] - batch["rewards"].mean()) / (batch["rewards"].std() + 1e-4)


def all_pads(batch):
    return torch.ones_like(batch["completion_mask"])


def no_end(batch):
    return batch["completion_mask"] * (batch["completion_ids"] != 1)


def shifted_mask(batch):
    return torch.nn.functional.pad(batch["completion_mask"], (1, 0))[:, :-1]


def first_end(batch):
    """argmax is 0 where there is no end."""
    ids = batch["completion_ids"]
    end = (ids == 1).int().argmax(1, keepdim=True)
    return (torch.arange(ids.shape[1]) <= end).long()


def whole_rows(model, batch):
    ids, mask = batch["input_ids"], batch["attention_mask"]
    logits = model(ids, attention_mask=mask, position_ids=own.positions(mask)).logits[:, :-1]
    logp = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return own.tokens(-batch["advantages"][:, None] * logp, mask[:, 1:], batch)


def completions_alone(model, batch):
    ids = batch["completion_ids"]
    logp = model(ids, attention_mask=batch["completion_mask"]).logits[:, :-1].log_softmax(-1)
    return torch.nn.functional.pad(logp.gather(-1, ids[:, 1:, None])[..., 0], (1, 0))


def with_dropout(model, batch):
    mask = batch["attention_mask"]
    logits = model(batch["input_ids"], attention_mask=mask, position_ids=own.positions(mask)).logits
    logits = torch.nn.functional.dropout(logits, 0.1)[:, -batch["completion_ids"].shape[1] - 1 : -1]
    return logits.log_softmax(-1).gather(-1, batch["completion_ids"][..., None])[..., 0]


def by_square(loss, mask, batch):
    return ((loss * mask).sum(1) / mask.sum(1) ** 2).mean()


def by_whole_length(loss, mask, batch):
    return ((loss * mask).sum(1) / batch["attention_mask"].sum(1)).mean()


def by_all_tokens(loss, mask, batch):
    return (loss * mask).sum() / batch["attention_mask"].sum()


def by_root(loss, mask, batch):
    return (loss * mask).sum() / mask.sum().sqrt()


COLD = {"temperature": 0.7}
WRONG = {
    "clip exchanged": (grpo(surrogate=exchanged), {}, "exchanged"),
    "clamp without the min": (grpo(surrogate=clamp_alone), {}, "cannot come back"),
    "minimum of the ratios": (grpo(surrogate=smaller_ratio), {}, "negative advantages"),
    "ratio upside down": (grpo(surrogate=upside_down), {}, "upside down"),
    "old shifted": (grpo(surrogate=shifted_old), {}, "shifted by one token"),
    "ratio to the reference": (grpo(surrogate=to_reference), {}, "to the reference"),
    "exp missing": (grpo(surrogate=without_exp), {}, "`exp` is missing"),
    "sequence ratio over the width": (grpo(surrogate=padded_sequence), {}, "padded width"),
    "ratio detached": (grpo(surrogate=detached), {}, "detached"),
    "ratio detached beside a KL": (grpo(surrogate=detached, kl=own.k3), KL, "Only the KL"),
    "old recomputed": (rescored, {}, "recomputed"),
    "means tiled": (grpo(advantage=tiled), {}, "tiled"),
    "strided": (grpo(advantage=strided), {}, "strided"),
    "over the batch": (grpo(advantage=over_the_batch), {"expect": "GRPO"}, "whole batch"),
    "no baseline": (grpo(advantage=lambda batch: batch["rewards"]), {}, "no baseline"),
    "prompt in": (whole_rows, {}, "Prompt tokens"),
    "prompt missing": (grpo(scoring=completions_alone), {}, "without their prompt"),
    "pads in": (grpo(mask_of=all_pads), {}, "behind the end"),
    "end out": (grpo(mask_of=no_end), {}, "end token"),
    "mask shifted": (grpo(mask_of=shifted_mask), {}, "shifted"),
    "argmax of no end": (grpo(mask_of=first_end), {}, "argmax"),
    "sign": (grpo(scale=-1.0), {}, "sign of the loss"),
    "KL swapped": (grpo(kl=lambda logp, ref: own.k3(ref, logp)), KL, "swapped"),
    "KL flipped": (grpo(kl=lambda logp, ref: -own.k3(logp, ref)), KL, "wrong sign"),
    "KL without gradient": (grpo(kl=lambda logp, ref: own.k3(logp.detach(), ref)), KL, "no KL has a"),
    "KL to itself": (grpo(kl=lambda logp, ref: own.k3(logp, logp.detach())), KL, "no KL has a"),
    "KL unmasked": (grpo(kl=own.k3, kl_mask_of=all_pads), KL, "not masked"),
    "KL without beta": (grpo(kl=own.k3, beta=1.0), KL, "not multiplied by beta"),
    "KL to the old policy": (
        lambda model, batch: grpo(kl=own.k3)(model, {**batch, "ref_logps": batch["old_logps"]}),
        KL,
        "to the old policy",
    ),
    "length twice": (grpo(reduce=by_square), {}, "twice"),
    "prompt in the length": (grpo(reduce=by_whole_length), {}, "length of prompt"),
    "temperature missing": (grpo(), COLD, "not applied"),
    "temperature twice": (grpo(scoring=lambda model, batch: own.score(model, batch, 0.49)), COLD, "applied twice"),
    "off by one": (grpo(scoring=scored(shift=0)), {}, "off by one"),
    "off by one, the other way": (grpo(scoring=scored(shift=2)), {}, "off by one"),
    "pads attended": (grpo(scoring=scored(attention=torch.ones_like)), {}, "see the pads"),
    "positions": (grpo(scoring=scored(place=lambda mask: mask * 0)), {}, "position_ids"),
    "dropout": (grpo(scoring=with_dropout), {}, "dropout"),
    "prompts in the divisor": (grpo(reduce=by_all_tokens), {}, "prompts' tokens"),
    "advantages of other rows": (grpo(advantage=lambda batch: batch["advantages"].roll(1)), {}, "of other rows"),
    "another variant": (grpo(), {"expect": "DAPO"}, "Expected DAPO, and it is GRPO"),
    "GSPO without the length": (grpo(surrogate=whole_sequence), {"expect": "GSPO"}, "Expected GSPO"),
}


@pytest.mark.parametrize(("loss", "said", "words"), WRONG.values(), ids=WRONG)
def test_a_mistake_is_named(loss, said, words):
    report = grpo_step(loss, **said)
    assert report.passed is False and words in report.hint, report


def last_alone(model, optimizer, batch):
    for part in own.split(batch, 2):
        optimizer.zero_grad()
        (grpo()(model, part) / 2).backward()
    optimizer.step()


def cleared_too_late(model, optimizer, batch):
    grpo()(model, batch).backward()
    optimizer.zero_grad()
    optimizer.step()


def never_stepped(model, optimizer, batch):
    grpo()(model, batch).backward()


def drawn_micro_batches(model, optimizer, batch):
    """Micro-batches that are drawn anew each time are no mistake, although each divides by its own tokens."""
    optimizer.zero_grad()
    order = torch.randperm(8)
    shuffled = {name: value[order] if value.dim() else value for name, value in batch.items()}
    for part in own.split(shuffled, 2):
        (grpo(reduce=own.tokens)(model, part) / 2).backward()
    optimizer.step()


def accelerated(model, optimizer, batch):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.backward(grpo()(model, batch))
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def scheduled(model, optimizer, batch):
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scaler.scale(grpo()(model, batch)).backward()
    scaler.step(optimizer)
    scheduler.step()


@pytest.mark.parametrize("step", [accelerated, scheduled])
def test_an_update_may_wrap_model_and_optimizer(step):
    report = grpo_step(update=step, expect="GRPO")
    assert report, report


def test_micro_batches_may_be_drawn():
    assert grpo_step(update=drawn_micro_batches, expect="BNPO")


WRONG_UPDATES = {
    "never divided": (update(grpo(), divide=False), {}, "never divided"),
    "divided twice": (update(grpo(scale=0.5)), {}, "once too often"),
    "divided twice, tokens": (update(grpo(reduce=own.all_tokens)), {}, "once too often"),
    "recomputed": (update(grpo(), steps=2, recompute="in each step"), {}, "ratio is still 1"),
    "not cleared": (update(grpo(), steps=3, clear=False), {}, "not cleared"),
    "last micro-batch": (last_alone, {}, "Only the last"),
    "cleared too late": (cleared_too_late, {}, "finds no gradient"),
    "never stepped": (never_stepped, {}, "never stepped"),
    "tokens of each micro-batch": (update(grpo(reduce=own.tokens)), {"expect": "DAPO"}, "Expected DAPO"),
}


@pytest.mark.parametrize(("step", "said", "words"), WRONG_UPDATES.values(), ids=WRONG_UPDATES)
def test_a_mistake_of_an_update_is_named(step, said, words):
    report = grpo_step(update=step, **said)
    assert report.passed is False and words in report.hint, report


# ---- neither


def truncated(logp, batch, advantage, mask):
    weight = (batch["old_logps"] - batch["ref_logps"]).exp().clamp(max=2).detach()
    return weight * own.token_clip(logp, batch, advantage, mask)


def odd_tokens(logp, batch, advantage, mask):
    return own.token_clip(logp, batch, advantage, mask) * (torch.arange(logp.shape[1]) % 2)


def curious(loss, mask, batch):
    return ((loss * mask).sum(1) / mask.sum(1).sqrt()).mean()


OPEN = {
    "weights of another sampler": (grpo(surrogate=truncated), {}, "No known combination"),
    "every other token": (grpo(surrogate=odd_tokens), {}, "leaves out"),
    "good answers alone": (
        grpo(advantage=lambda batch: batch["advantages"].clamp(min=0)),
        {},
        "negative advantage have no weight",
    ),
    "another divisor": (grpo(reduce=curious), {}, "Within each row"),
    "the padded width": (grpo(reduce=lambda loss, mask, batch: (loss * mask).mean()), {}, "padded width"),
    "a temperature that nobody said": (
        grpo(scoring=lambda model, batch: own.score(model, batch, 0.7)),
        {},
        "say temperature=0.7",
    ),
    "nothing clipped": (grpo(surrogate=unclipped), {}, "not clipped at all"),
    "a sequence's ratio without its length": (grpo(surrogate=whole_sequence), {}, "expect='RLOO'"),
    "a KL of an eighth of beta": (grpo(kl=own.k3, beta=0.005), KL, "times beta"),
    "by the root of the tokens": (grpo(reduce=by_root), {}, "no constant"),
    "no attention mask": (grpo(scoring=scored(attention=None)), {}, "without an attention mask"),
    "k1": (grpo(kl=lambda logp, ref: logp - ref), KL, "does not depend on the reference"),
    "plain reinforce": (grpo(surrogate=log_probs, advantage=lambda batch: batch["rewards"]), {}, "REINFORCE"),
    "a ratio of 1 for GRPO": (grpo(surrogate=ratio_of_one), {"expect": "GRPO"}, "only where the ratio is 1"),
    "entropy as a cost": (with_entropy(-0.01), {}, "Entropy is a cost"),
    "z-loss": (
        lambda model, batch: grpo()(model, batch) + 0.1 * model.model.table[:8].logsumexp(-1).pow(2).mean(),
        {},
        "not that of the log-probs",
    ),
}


@pytest.mark.parametrize(("loss", "said", "words"), OPEN.values(), ids=OPEN)
def test_what_cannot_be_settled_is_neither_passed_nor_refused_and_says_what_is_left(loss, said, words):
    report = grpo_step(loss, **said)
    assert report.passed is None and words in report.hint, report


# ---- forms that somebody has published, and GRPO has not


def batch_normalised(batch):
    return (batch["rewards"] - batch["rewards"].mean()) / batch["rewards"].std()


def batch_mean(batch):
    return batch["rewards"] - batch["rewards"].mean()


@pytest.mark.parametrize("surrogate", [own.token_clip, log_probs])
@pytest.mark.parametrize("expect", [None, "REINFORCE++"])
def test_a_normalisation_over_the_batch_is_reinforce_plus_plus_and_a_caution_names_it(surrogate, expect):
    kl = own.k2 if surrogate is own.token_clip else None
    loss = grpo(advantage=batch_normalised, surrogate=surrogate, kl=kl, reduce=own.tokens)
    report = grpo_step(loss, expect=expect)
    assert report and report.variant == "REINFORCE++", report
    assert "REINFORCE++: the rewards" in report.caution and "within the group" in report.caution, report


@pytest.mark.parametrize("advantage", [batch_normalised, batch_mean])
@pytest.mark.parametrize("expect", ["GRPO", "DAPO", "Dr. GRPO"])
def test_who_expects_groups_and_compares_over_the_batch_is_told(advantage, expect):
    report = grpo_step(grpo(advantage=advantage, reduce=own.tokens), expect=expect)
    assert report.passed is False and "whole batch" in report.hint, report


@pytest.mark.parametrize("surrogate", [own.token_clip, log_probs, unclipped])
def test_a_mean_over_the_batch_is_a_published_baseline_and_no_mistake_by_itself(surrogate):
    report = grpo_step(grpo(advantage=batch_mean, surrogate=surrogate))
    assert report.passed is None and "Plain REINFORCE does so" in report.hint, report


@pytest.mark.parametrize("advantage", [batch_normalised, batch_mean])
@pytest.mark.parametrize("surrogate", [log_probs, unclipped])
def test_plain_reinforce_may_have_any_baseline_where_it_is_expected(advantage, surrogate):
    report = grpo_step(grpo(advantage=advantage, surrogate=surrogate), expect="REINFORCE")
    assert report and report.variant == "REINFORCE", report


# ---- a divisor that follows the tokens, and one that does not


def of_whole_batch_times_rows(loss, mask, batch):
    return (loss * mask).sum() / (batch["num_items_in_batch"] * 8)


def of_call_times_rows(loss, mask, batch):
    return (loss * mask).sum() / (mask.sum() * len(mask))


def two_groups_alone(batch):
    """As a trainer that knows its batch: half of the rows are an error."""
    rows = batch["rewards"].view(2, 4)
    return ((rows - rows.mean(1, keepdim=True)) / (rows.std(1, keepdim=True) + 1e-4)).view(8)


@pytest.mark.parametrize("advantage", [own.given, two_groups_alone])
@pytest.mark.parametrize("reduce", [of_whole_batch_times_rows, of_call_times_rows])
def test_a_divisor_that_follows_the_tokens_is_no_constant_whatever_it_is_multiplied_by(reduce, advantage):
    loss = grpo(reduce=reduce, advantage=advantage)
    expected = grpo_step(loss, expect="Dr. GRPO")
    assert expected.passed is False and "divisor tokens" in expected.hint, expected
    report = grpo_step(loss)
    assert report and report.parts["divisor"] == "tokens", report
    assert report.scale == pytest.approx(1 / 8, rel=1e-3), report


def test_a_constant_that_happens_to_be_the_tokens_times_the_rows_is_a_constant():
    loss = grpo(reduce=lambda loss, mask, batch: (loss * mask).sum() / (34 * 8))
    report = grpo_step(loss, expect="Dr. GRPO")
    assert report and report.parts["divisor"] == "constant", report


def test_a_token_mean_divided_for_an_accumulation_to_come_is_a_token_mean():
    report = grpo_step(grpo(reduce=own.tokens, scale=0.25), expect="BNPO")
    assert report and report.variant == "BNPO", report


# ---- what is so small that rounding could be it, and what differs by a factor alone


def test_a_kl_of_a_small_beta_is_seen_because_it_is_longer_than_the_rounding():
    report = grpo_step(grpo(kl=own.k3, beta=0.001), beta=0.001)
    assert report and report.parts["kl"].endswith("k3"), report


def test_a_kl_of_a_small_beta_that_is_missing_is_seen_as_well():
    report = grpo_step(grpo(), beta=0.001)
    assert report.passed is False and "no KL has a gradient" in report.hint, report


@pytest.mark.parametrize("kl", [None, own.k3])
def test_a_kl_that_cannot_be_told_from_what_is_unexplained_is_no_mistake(kl):
    """Advantages in half precision are off by more than a KL of so small a weight makes."""
    loss = grpo(advantage=lambda batch: batch["advantages"].half().float(), kl=kl, beta=0.0005)
    report = grpo_step(loss, beta=0.0005)
    assert report.passed is not False and "cannot be told" in report.caution + report.hint, report


@pytest.mark.parametrize("surrogate", [log_probs, unclipped])
def test_leave_one_out_is_the_group_mean_but_for_a_factor_so_the_expectation_decides(surrogate):
    def textbook(model, batch):
        logp, mask = own.score(model, batch), batch["completion_mask"]
        advantage = leave_one_out(batch)[:, None]
        return (surrogate(logp, batch, advantage, mask) * mask).sum(1).mean()

    report = grpo_step(textbook, expect="RLOO")
    assert report and report.variant == "RLOO", report
    flipped = grpo_step(lambda model, batch: -textbook(model, batch), expect="RLOO")
    assert flipped.passed is False and "sign" in flipped.hint, flipped


def six_of_eight(model, optimizer, batch):
    """Micro-batches of three: the last two rows do not fill one."""
    optimizer.zero_grad()
    for at in range(0, 8 // 3 * 3, 3):
        part = {name: value[at : at + 3] if value.dim() else value for name, value in batch.items()}
        grpo(reduce=own.all_tokens)(model, part).backward()
    optimizer.step()


def five_and_three(model, optimizer, batch):
    optimizer.zero_grad()
    for rows in (slice(0, 5), slice(5, 8)):
        part = {name: value[rows] if value.dim() else value for name, value in batch.items()}
        (grpo()(model, part) / 2).backward()
    optimizer.step()


@pytest.mark.parametrize("expect", [None, "DAPO"])
def test_rows_that_no_step_uses_are_named(expect):
    report = grpo_step(update=six_of_eight, expect=expect)
    assert report.passed is None and "No step uses rows 7, 8, the last" in report.hint, report
    assert "8 // 3 * 3" in report.hint.partition("Look at")[2], report


def test_rows_without_an_end_may_be_used_in_no_step():
    def ended_alone(model, optimizer, batch):
        keep = (batch["completion_ids"] == 1).any(1)
        part = {name: value[keep] if value.dim() else value for name, value in batch.items()}
        update(grpo(), parts=1)(model, optimizer, part)

    report = grpo_step(update=ended_alone)
    assert report and "row 3" in report.caution, report


def test_micro_batches_of_unequal_size_that_weigh_the_same_are_a_caution_and_not_what_is_expected():
    report = grpo_step(update=five_and_three)
    assert report and "unequal numbers of rows" in report.caution, report
    report = grpo_step(update=five_and_three, expect="GRPO")
    assert report.passed is None and "unequal numbers of rows" in report.hint, report


def lower_at_28(logp, batch, advantage, mask):
    ratio = (logp - batch["old_logps"]).exp()
    return -torch.min(ratio * advantage, ratio.clamp(1 - 0.28, 1 + 0.2) * advantage)


def test_another_clip_than_was_said_is_left_open_and_exchanged_bounds_are_asked_about():
    exchanged_bounds = grpo(surrogate=lower_at_28)
    report = grpo_step(exchanged_bounds, clip=(0.2, 0.28))
    assert report.passed is None and "exchanged?" in report.hint and ".clamp(" in report.hint, report
    assert grpo_step(exchanged_bounds, clip=(0.28, 0.2))


@pytest.mark.parametrize(("low", "high", "words"), [(1.0, 0.2, "No lower"), (0.2, 1e9, "No upper")])
@pytest.mark.parametrize("said", [{}, {"clip": (0.2, 0.2)}])
def test_a_bound_that_is_missing_is_left_open_whether_a_clip_was_said_or_not(low, high, words, said):
    loss = grpo(surrogate=lambda *given: own.token_clip_at(*given, low=low, high=high))
    report = grpo_step(loss, **said)
    assert report.passed is None and words in report.hint, report


def minimum_without_minus(model, batch):
    mask, advantage = batch["completion_mask"], batch["advantages"][:, None]
    logp = own.score(model, batch)
    ratio = (logp - batch["old_logps"]).exp()
    gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return ((gain * mask).sum(1) / mask.sum(1)).mean()


def whole_width(model, batch):
    am = batch["attention_mask"]
    pos = (am.cumsum(1) - 1).clamp(min=0)
    logits = model(batch["input_ids"], attention_mask=am, position_ids=pos).logits[:, 3:-1]
    logp = logits.log_softmax(-1).gather(-1, batch["completion_ids"][..., None])[..., 0]
    keep = batch["completion_mask"] * 0 + 1
    return -(batch["advantages"][:, None] * logp * keep).sum() / keep.sum()


@pytest.mark.parametrize(("loss", "word"), [(minimum_without_minus, "torch.min("), (whole_width, "keep")])
def test_the_line_shown_has_to_do_with_the_part_that_is_named(loss, word):
    line = grpo_step(loss).hint.partition("Look at")[2]
    assert word in line or not line, line


# ---- no invented cause


def sequence_ratio_with_pads(logp, batch, advantage, mask):
    """The ratio counts the pads; the gradient goes through the tokens' log-probs alone."""
    ratio = (logp - batch["old_logps"]).mean(1).exp()[:, None].detach()
    return own.clipped(ratio * (logp - logp.detach()).exp(), advantage)


@pytest.mark.parametrize(
    "loss",
    [
        grpo(surrogate=sequence_ratio_with_pads),
        grpo(surrogate=log_probs, advantage=lambda batch: batch["rewards"].cumsum(0) - 1),
    ],
)
def test_one_number_a_row_is_never_taken_for_a_published_weight_times_a_factor_a_row(loss):
    report = grpo_step(loss)
    assert report.passed is None and report.parts["kl"] == "unknown", report
    assert "VESPO" not in repr(report) and "all tokens weigh alike" in report.hint, report


def shuffled(model, batch):
    order = torch.tensor([5, 2, 7, 0, 3, 6, 1, 4])
    return grpo(surrogate=unclipped)(model, {**batch, "old_logps": batch["old_logps"][order]})


def test_the_parts_of_a_combination_that_is_far_off_are_not_shown():
    report = grpo_step(shuffled)
    assert report.passed is None and set(report.parts.values()) == {"unknown"}, report
    assert "nor comes near" in report.hint and report.scale != report.scale, report


def test_rows_are_other_rows_only_where_some_are_named():
    report = grpo_step(grpo(surrogate=odd_tokens))
    assert "leaves out" in report.hint and ("other rows" in report.hint) == ("row" in report.parts["mask"][:14])


def clipped_at_the_log(logp, batch, advantage, mask):
    """The clip's bounds are those of a ratio, and what is clamped is its log."""
    ratio = (logp - batch["old_logps"]).exp()
    return torch.max(-advantage * ratio, -advantage * ratio.log().clamp(0.8, 1.2))


def test_tokens_without_weight_beyond_a_ratio_are_a_clip_and_no_mask():
    report = grpo_step(grpo(surrogate=clipped_at_the_log))
    assert report.passed is None and "where a good answer's ratio is" in report.hint, report
    assert ".clamp(0.8, 1.2)" in report.hint, report


def bound_for_all(logp, batch, advantage, mask):
    """The dual clip's bound, meant for bad answers, over good ones as well."""
    return torch.min(own.token_clip(logp, batch, advantage, mask), -3.0 * advantage)


def test_that_nothing_is_learned_from_good_answers_is_said():
    report = grpo_step(grpo(surrogate=bound_for_all))
    assert report.passed is None and "nothing is learned from good answers" in report.hint, report


# ---- rows that count too often, or not at all


def running_total(model, optimizer, batch):
    optimizer.zero_grad()
    total = 0.0
    for part in own.split(batch, 4):
        total = total + grpo(reduce=own.all_tokens)(model, part)
        total.backward(retain_graph=True)
    optimizer.step()


def test_rows_whose_loss_is_summed_once_more_with_each_micro_batch_are_counted():
    report = grpo_step(update=running_total)
    assert report.passed is False and "4, 4, 3, 3, 2, 2, 1, 1 times" in report.hint, report
    assert "backward(" in report.hint, report


def last_of_a_loop(step):
    def loss(model, batch):
        value = 0.0
        for group in range(0, 8, step):
            for at in range(group, group + step):
                row = {name: one[at : at + 1] if one.dim() else one for name, one in batch.items()}
                of_row = grpo(surrogate=log_probs)(model, row)
            value = value + of_row
        return value

    return loss


@pytest.mark.parametrize(("step", "words"), [(8, "Only row 8 has a"), (4, "Only rows 4, 8 have a")])
def test_rows_that_a_loop_overwrites_are_told_by_the_place_of_those_that_are_left(step, words):
    report = grpo_step(last_of_a_loop(step))
    assert report.passed is None and words in report.hint and "the last of" in report.hint, report


def one_row_last(model, optimizer, batch):
    """The gradients are cleared before each micro-batch, and the last has a single row."""
    for rows in (slice(0, 4), slice(4, 7), slice(7, 8)):
        optimizer.zero_grad()
        part = {name: value[rows] if value.dim() else value for name, value in batch.items()}
        grpo(reduce=own.all_tokens)(model, part).backward()
    optimizer.step()


def test_a_last_micro_batch_of_one_row_is_recognised_as_well():
    report = grpo_step(update=one_row_last)
    assert report.passed is False and "Only the last micro-batch" in report.hint, report


def in_float16(model, batch):
    logp = (own.score(model, batch) + 14).half().exp().log().float()
    return -(batch["advantages"][:, None] * logp * batch["completion_mask"]).mean()


def test_an_overflow_of_float16_is_named_by_its_operation():
    report = grpo_step(in_float16)
    assert report.passed is False and "`exp` in float16" in report.hint, report


def divided_by_nothing(model, batch):
    return grpo()(model, batch) / (batch["advantages"] * 0).sum()


def test_what_is_not_finite_in_float32_is_not_blamed_on_float16():
    report = grpo_step(divided_by_nothing)
    assert report.passed is False and "float16" not in report.hint, report


def test_positions_from_columns_are_a_caution_because_a_rotary_model_does_not_mind():
    report = grpo_step(grpo(scoring=scored(place=None)))
    assert report and "GPT-2" in report.caution


def test_a_clip_that_nobody_said_is_found_between_the_ratios():
    report = grpo_step(grpo(surrogate=clip_higher))
    assert report and "clips somewhere near" in report.caution


def test_the_line_is_shown_where_the_clip_is():
    report = grpo_step(grpo(surrogate=exchanged))
    assert "test_grpo_step.py" in report.hint and "torch.max(" in report.hint


def test_what_the_weights_are_beside_what_they_should_be():
    report = grpo_step(grpo(mask_of=no_end))
    ends = [one for one in report.tokens if one.id == 1]
    assert len(ends) == 7 and all(one.found == 0 for one in ends)
    assert sum(one.expected != 0 for one in ends) > 3  # a clip may have some
    picture = report._repr_html_()
    assert picture.count("<rect") == 48 and "FAIL" in picture
    assert pickle.loads(pickle.dumps(report)) == report


def test_a_fused_loss_is_compared_with_the_eager_one_token_by_token():
    """What a kernel's own test wants: the same weights, to float32."""
    eager = grpo_step(grpo(reduce=own.all_tokens, kl=own.k3), beta=0.04)
    fused = grpo_step(grpo(scoring=from_hidden_states, reduce=own.all_tokens, kl=own.k3), beta=0.04)
    pairs = list(zip(eager.tokens, fused.tokens, strict=True))
    assert pairs and all(abs(one.found - two.found) < 1e-6 for one, two in pairs)


def test_an_assertion_with_a_report_shows_it_when_it_fails():
    with pytest.raises(AssertionError, match="exchanged"):
        assert grpo_step(grpo(surrogate=exchanged), expect="GRPO"), "as a test of a trainer has it"


def endless(model, batch):
    while True:
        pass


def asleep(model, batch):
    time.sleep(60)


@pytest.mark.parametrize("function", [endless, asleep])
def test_what_does_not_come_back_is_stopped(function, monkeypatch):
    monkeypatch.setattr("labkit.checks.grpo_step.PATIENCE", 0.3, raising=False)
    monkeypatch.setitem(grpo_step.__globals__, "PATIENCE", 0.3)
    report = grpo_step(function)
    assert report.passed is None and "did not come back" in report.hint


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"expect": "PPO-XL"}, "expected one of GRPO"),
        ({"temperature": 0}, "temperature must be above 0"),
        ({"clip": (1.2, 0.8)}, "below and above 1"),
        ({"beta": -1}, "beta must be 0 or more"),
        ({"update": grpo()}, "not both"),
    ],
)
def test_a_setting_that_cannot_be_is_an_error_that_names_it(settings, words):
    with pytest.raises(ValueError, match=words):
        grpo_step(grpo(), **settings)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_it_reads_the_same_on_a_gpu():
    for loss in (grpo(kl=own.k3), grpo(surrogate=exchanged)):
        on_cpu, on_gpu = (grpo_step(loss, beta=0.04, device=device) for device in ("cpu", "cuda"))
        assert (on_cpu.passed, on_cpu.parts) == (on_gpu.passed, on_gpu.parts)
