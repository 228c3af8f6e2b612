"""Losses for the tests of `checks.grpo_step`: one plain GRPO loss, whose pieces can be exchanged one by one.

Written as trainers write them, and apart from labkit's own tables of forms.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

G = 4


def positions(mask):
    return (mask.cumsum(1) - 1).clamp(min=0)


def score(model, batch, temperature=1.0):
    """Log-probs [B, C] of the completion's tokens."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    width = batch["completion_ids"].shape[1]
    out = model(ids, attention_mask=mask, position_ids=positions(mask))
    logits = out.logits[:, -width - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(-1, batch["completion_ids"][..., None])[..., 0]


def clipped(ratio, advantage, low=0.2, high=0.2):
    return -torch.min(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def token_clip(logp, batch, advantage, mask):
    return clipped((logp - batch["old_logps"]).exp(), advantage)


def token_clip_at(logp, batch, advantage, mask, low, high):
    return clipped((logp - batch["old_logps"]).exp(), advantage, low, high)


def k3(logp, ref):
    return (ref - logp).exp() - (ref - logp) - 1


def k2(logp, ref):
    return (logp - ref) ** 2 / 2


def sequences(loss, mask, batch):
    return ((loss * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()


def tokens(loss, mask, batch):
    return (loss * mask).sum() / mask.sum()


def all_tokens(loss, mask, batch):
    return (loss * mask).sum() / batch["num_items_in_batch"]


def constant(loss, mask, batch, most=512):
    return (loss * mask).sum() / (len(loss) * most)


def given(batch):
    return batch["advantages"]


def group(batch, std=True):
    rows = batch["rewards"].view(-1, G)
    centred = rows - rows.mean(1, keepdim=True)
    return (centred / (rows.std(1, keepdim=True) + 1e-4) if std else centred).view(-1)


def completion_mask(batch):
    return batch["completion_mask"]


def grpo(
    scoring=score,
    advantage=given,
    surrogate=token_clip,
    kl=None,
    beta=0.04,
    mask_of=completion_mask,
    kl_mask_of=None,
    reduce=sequences,
    scale=1.0,
):
    """A loss put together of these pieces."""

    def loss(model, batch):
        logp = scoring(model, batch)
        mask = mask_of(batch)
        per_token = surrogate(logp, batch, advantage(batch)[:, None], mask)
        if kl is None:
            return scale * reduce(per_token, mask, batch)
        of_kl = beta * kl(logp, batch["ref_logps"])
        if kl_mask_of is None:
            return scale * reduce(per_token + of_kl, mask, batch)
        return scale * (reduce(per_token, mask, batch) + reduce(of_kl, kl_mask_of(batch), batch))

    return loss


# ---- ways to score


def scored(pad_logits=None, attention=True, place=positions, temperature=1.0, dtype=None, shift=1):
    def scoring(model, batch):
        ids, mask = batch["input_ids"], batch["attention_mask"]
        given_mask = {}
        if attention is True:
            given_mask["attention_mask"] = mask
        elif attention is not None:
            given_mask["attention_mask"] = attention(mask)
        if place is not None:
            given_mask["position_ids"] = place(mask)
        width = batch["completion_ids"].shape[1]
        logits = model(ids, **given_mask).logits
        if dtype is not None:
            logits = logits.to(dtype)
        end = logits.shape[1] - shift
        logits = logits[:, end - width : end] / temperature
        return logits.log_softmax(-1).gather(-1, batch["completion_ids"][..., None])[..., 0].float()

    return scoring


def kept_logits(model, batch):
    """TRL's way: one logit more than tokens, the last one dropped."""
    width, mask = batch["completion_ids"].shape[1], batch["attention_mask"]
    out = model(
        input_ids=batch["input_ids"],
        attention_mask=mask,
        position_ids=positions(mask),
        logits_to_keep=width + 1,
        use_cache=False,
    )
    return -F.cross_entropy(out["logits"][:, :-1].transpose(1, 2), batch["completion_ids"], reduction="none")


def row_by_row(model, batch):
    """No padding at all: each row on its own."""
    rows = []
    for at, mask in enumerate(batch["attention_mask"]):
        ids = batch["input_ids"][at][mask.bool()][None]
        length = int(batch["completion_mask"][at].sum())
        logp = model(ids)[0][:, -length - 1 : -1].log_softmax(-1)
        logp = logp.gather(-1, ids[:, -length:, None])[0, :, 0]
        rows.append(F.pad(logp, (0, batch["completion_ids"].shape[1] - length)))
    return torch.stack(rows)


def padded_right(model, batch):
    """Rows moved to the left, pads behind, no attention mask: causal attention needs none."""
    whole, mask = batch["input_ids"], batch["attention_mask"].bool()
    ids = torch.zeros_like(whole)
    for at in range(len(whole)):
        real = whole[at][mask[at]]
        ids[at, : len(real)] = real
    logp = model(ids[:, :-1]).logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    first = batch["prompt_mask"].sum(1, keepdim=True) - 1
    at = first + torch.arange(batch["completion_ids"].shape[1], device=ids.device)
    return logp.gather(1, at.clamp(max=logp.shape[1] - 1))


def packed(model, batch):
    """All rows in one, as flash attention takes them."""
    mask = batch["attention_mask"].bool()
    ids = batch["input_ids"][mask][None]
    place = positions(batch["attention_mask"])[mask][None]
    logp = model(ids, position_ids=place).logits[:, :-1].log_softmax(-1)
    logp = F.pad(logp.gather(-1, ids[:, 1:, None])[..., 0], (1, 0))[0]
    whole = torch.zeros(mask.shape, dtype=logp.dtype, device=logp.device).masked_scatter(mask, logp)
    return whole[:, -batch["completion_ids"].shape[1] :]


# ---- an update


def update(loss, parts=2, steps=1, divide=True, recompute="never", clear=True, minibatches=1):
    """Micro-batches, inner updates, and old log-probs scored at the beginning, in each step, or never."""

    def run(model, optimizer, batch):
        batch = dict(batch)
        if recompute == "at the beginning":
            with torch.no_grad():
                batch["old_logps"] = score(model, batch)
        for _ in range(steps):
            for mini in split(batch, minibatches):
                if clear:
                    optimizer.zero_grad()
                for part in split(mini, parts):
                    if recompute == "in each step":
                        with torch.no_grad():
                            part["old_logps"] = score(model, part)
                    value = loss(model, part)
                    (value / parts if divide else value).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()

    return run


def split(batch, parts):
    size = len(batch["input_ids"]) // parts
    for at in range(0, size * parts, size):
        yield {name: value[at : at + size] if value.dim() else value for name, value in batch.items()}
