"""GRPO in one file, by its formulae, with nothing of labkit in the arithmetic: the loop of lesson 00.

`labkit.grpo.train("add", exam=True)` computes the same numbers: tests/grpo/test_plain_loop.py.
Source: DeepSeekMath (arXiv 2402.03300); the mean over all tokens of the batch is DAPO's
(arXiv 2503.14476).
"""

import copy
import random

import torch

from labkit.events import Exam, Step
from labkit.grpo import exam, load, rollout, task

ADD = task.get("add")


def log_probs(model, out):
    """Log-probability of each token of the completions: [B, T]."""
    length = out.tokens.shape[1]
    logits = model(out.ids, attention_mask=out.attention_mask).logits
    logits = logits[:, -length - 1 : -1]  # [B, T, V]: each stands one place before its token
    return logits.log_softmax(-1).gather(-1, out.tokens[:, :, None])[:, :, 0]


def my_advantage(rewards, group_size):
    """How much better is a completion than the others for the same prompt? [B] -> [B]."""
    rows = rewards.view(-1, group_size)  # [groups, group_size]
    centred = rows - rows.mean(1, keepdim=True)
    # without the 1e-4 a group of equal rewards would be 0 / 0
    return (centred / (rows.std(1, keepdim=True) + 1e-4)).view(-1)


def loss_of(logp, old_logp, ref_logp, advantages, mask):
    """The clipped loss plus 0.04 times the KL to the reference: a scalar, and the mean KL."""
    gain = advantages[:, None]  # [B, 1]
    ratio = (logp - old_logp).exp()  # [B, T]
    # the smaller one: going further than the clip brings nothing more
    surrogate = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
    d = ref_logp - logp
    kl = torch.expm1(d) - d  # k3, never below 0
    tokens = mask.sum()
    loss = ((0.04 * kl - surrogate) * mask).sum() / tokens
    return loss, (kl * mask).sum() / tokens


def grpo(seed, rounds=12, mu=4, policy=None):
    """Teach the tiny policy to add: a `Step` after each update, an `Exam` after each round."""
    torch.set_num_threads(1)  # faster for a policy this small
    policy = policy or load("tiny", "cpu")
    model, reference = policy.model, copy.deepcopy(policy.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0)
    prompt_rng, token_rng = random.Random(seed), torch.Generator().manual_seed(seed)
    yield Exam(0, {"add": exam.chance(model, policy.tokenizer)})
    for round_ in range(1, rounds + 1):
        # 1. eight prompts, and eight completions of each
        prompts = ADD.sample(8, prompt_rng)
        out = rollout.generate(policy, prompts, num_samples=8, generator=token_rng)
        # 2. their rewards, their advantages, and what the old policy and the reference say of them
        asked = [prompt for prompt in prompts for _ in range(8)]
        rewards = torch.tensor(task.rewards(asked, out.texts))  # [B]
        advantages = my_advantage(rewards, 8)
        with torch.no_grad():
            old_logp, ref_logp = log_probs(model, out), log_probs(reference, out)  # [B, T]
        # 3. four updates on them
        for inner in range(1, mu + 1):
            loss, kl = loss_of(log_probs(model, out), old_logp, ref_logp, advantages, out.mask)
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            numbers = {"loss": loss.item(), "reward": rewards.mean().item()}
            numbers |= {"kl": kl.item(), "grad_norm": norm.item()}
            yield Step(mu * (round_ - 1) + inner, round_, inner, **numbers)
        yield Exam(round_, {"add": exam.chance(model, policy.tokenizer)})
