"""Make the tiny policy that ships with labkit: supervised training on the three task families, one to three minutes.

    python scripts/make_checkpoint.py [--out labkit/checkpoints/tiny] [--steps 1200] [--wrong 0.5] [--seed 0]

It knows the right answer and does not give it: of the answers that it is trained on, half are wrong in one way (`add`
ten off, `max` the smaller number). So on each prompt it is right about half of the time, the first token decides, and
GRPO has something to teach. Prompts that are held out for the exam are not trained on. Why so, and what else was
tried: docs/decisions/002-a-policy-that-learns.md.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from labkit.grpo import exam, task

SHARES = {"add": 0.60, "max": 0.25, "copy": 0.15}  # of the training rows
WIDTH = 10  # tokens in a row: 'dd+dd=' has 6, an answer at most 3, then <eos>
PROMPT = 6


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character; ids 0 and 1 are padding and end of sequence."""
    vocab = {"<pad>": 0, "<eos>": 1, **{c: i + 2 for i, c in enumerate(task.ALPHABET)}}
    core = Tokenizer(models.WordLevel(vocab, unk_token=None))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", padding_side="left")


def make_model() -> GPT2LMHeadModel:
    """GPT-2 with 2 layers, 128 wide, 16 symbols: 402,944 parameters, no dropout."""
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    special = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    gelu = "gelu_pytorch_tanh"  # the function of GPT-2's gelu_new, in one kernel
    size = {"n_layer": 2, "n_embd": 128, "n_head": 4, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(vocab_size=16, activation_function=gelu, **size, **off, **special))


def wrong_answer(family: str, prompt: str) -> str:
    """The answer that is wrong in the family's one way; `copy` has none."""
    a, b = int(prompt[:2]), int(prompt[3:5])
    if family == "add":
        return str(a + b - 10 if a + b >= 10 else a + b + 10)  # no sum is below 0
    return str(min(a, b)) if family == "max" else task.get(family).answer(prompt)


def rows(n: int, rng: random.Random, wrong: float) -> list[str]:
    """`n` training texts; a share of `wrong` of their answers is the wrong one."""
    texts = []
    for family in rng.choices(list(SHARES), list(SHARES.values()), k=n):
        (prompt,) = task.get(family).sample(1, rng)
        answer = wrong_answer(family, prompt) if rng.random() < wrong else task.get(family).answer(prompt)
        texts.append(prompt + answer)
    return texts


def train(model, tokenizer, steps: int, wrong: float, seed: int, batch: int = 256, lr: float = 3e-3) -> None:
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    for _ in range(steps):
        tokens = [[*tokenizer(text)["input_ids"], 1] for text in rows(batch, rng, wrong)]
        ids = torch.tensor([row + [0] * (WIDTH - len(row)) for row in tokens])
        labels = ids.masked_fill(ids == 0, -100)
        labels[:, :PROMPT] = -100  # only the answer is learned
        logits = model(input_ids=ids, attention_mask=(ids != 0).long()).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def report(model, tokenizer) -> None:
    """Chance of the right answer and of the wrong one, over all prompts of a family: trained on, and held out."""
    print("family  prompts    right   wrong   lowest right")
    for family in SHARES:
        for name, prompts in (
            ("seen", task.get(family).sample(1000, random.Random(10_000))),
            ("held out", task.get(family).held_out()),
        ):
            right = exam.paper_of(tokenizer, prompts, [task.get(family).answer(p) for p in prompts]).chances(model)
            wrong = exam.paper_of(tokenizer, prompts, [wrong_answer(family, p) for p in prompts]).chances(model)
            print(f"{family:7s} {name:9s} {right.mean():6.3f}  {wrong.mean():6.3f}  {right.min():6.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="labkit/checkpoints/tiny", type=Path)
    parser.add_argument("--steps", default=1200, type=int)
    parser.add_argument("--wrong", default=0.5, type=float, help="share of the answers that are wrong, 0 to 1")
    parser.add_argument("--seed", default=0, type=int)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    tokenizer, model, began = make_tokenizer(), make_model(), time.perf_counter()
    train(model, tokenizer, args.steps, args.wrong, args.seed)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {time.perf_counter() - began:.0f} s")
    report(model.eval(), tokenizer)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    for path in args.out.iterdir():
        path.chmod(0o644)


if __name__ == "__main__":
    main()
