"""Make the tiny policy that ships with labkit: supervised training on the three task families, about ten seconds.

    python scripts/make_checkpoint.py [--out labkit/checkpoints/tiny] [--steps 200] [--seed 0]

It stops short on purpose: greedy `add` 0.4, `max` 0.8, `copy` 1.0, so that GRPO has something to improve.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from labkit import task
from labkit.policy import Policy
from labkit.rollout import generate


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character; ids 0 and 1 are padding and end of sequence."""
    vocab = {"<pad>": 0, "<eos>": 1, **{c: i + 2 for i, c in enumerate(task.ALPHABET)}}
    core = Tokenizer(models.WordLevel(vocab, unk_token=None))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", padding_side="left")


def examples(n: int, rng: random.Random, weights: tuple[float, float, float]) -> list[str]:
    families = rng.choices(list(task.TASKS.values()), weights, k=n)
    prompts = [f.sample(1, rng)[0] for f in families]
    return [p + f.answer(p) for f, p in zip(families, prompts, strict=True)]


def train(model, tokenizer, steps: int, seed: int, batch: int = 256, lr: float = 3e-3) -> None:
    rng, width = random.Random(seed), 10  # 'dd+dd=' is 6 tokens, an answer at most 3, then <eos>
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    for _ in range(steps):
        rows = [[*tokenizer(t)["input_ids"], 1] for t in examples(batch, rng, (0.6, 0.1, 0.3))]
        ids = torch.tensor([r + [0] * (width - len(r)) for r in rows])
        labels = ids.masked_fill(ids == 0, -100)
        labels[:, :6] = -100  # only the answer is learned
        logits = model(input_ids=ids, attention_mask=(ids != 0).long()).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def accuracy(policy: Policy, name: str, n: int = 1000) -> tuple[float, float]:
    """Greedy accuracy, and mean reward of samples at temperature 1."""
    prompts = task.get(name).sample(n, random.Random(10_000))
    scores = []
    for temperature in (0.01, 1.0):
        out = generate(
            policy,
            prompts,
            num_samples=1,
            max_new_tokens=4,
            temperature=temperature,
            generator=torch.Generator().manual_seed(0),
        )
        scores.append(sum(task.rewards(prompts, out.texts)) / n)
    return scores[0], scores[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="labkit/checkpoints/tiny", type=Path)
    parser.add_argument("--steps", default=200, type=int)
    parser.add_argument("--seed", default=0, type=int)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    tokenizer, began = make_tokenizer(), time.perf_counter()
    config = GPT2Config(vocab_size=16, n_layer=2, n_embd=128, n_head=4, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, pad_token_id=0,
                        activation_function="gelu_pytorch_tanh")  # fmt: skip  # gelu_new, in one kernel
    model = GPT2LMHeadModel(config)
    train(model, tokenizer, args.steps, args.seed)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {time.perf_counter() - began:.1f} s")
    policy = Policy(model.eval(), tokenizer, "tiny")
    for name in task.TASKS:
        greedy, sampled = accuracy(policy, name)
        print(f"{name:5s} greedy {greedy:.3f}  sampled {sampled:.3f}")
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    for path in args.out.iterdir():
        path.chmod(0o644)


if __name__ == "__main__":
    main()
