"""Make a policy that ships with labkit: supervised training, one to three minutes.

    python scripts/make_checkpoint.py [tiny | tiny-long] [--out labkit/checkpoints/tiny] [--steps 1200] [--wrong 0.5]

`tiny` begins from nothing and learns the families `add`, `max` and `copy`. `tiny-long` begins from `tiny` and learns
`long`, whose answers have 15 or 16 tokens with the end token.

Both know the right answer and do not always give it: of the answers that they are trained on, about half are wrong in
one way (`add` and `long` ten off, `max` the smaller number). So on each prompt a policy is right about half of the
time, one token decides, and GRPO has something to teach. Prompts that are held out for the exam are not trained on.
Why so, and what else was tried: docs/decisions/002-a-policy-that-learns.md and 114-lesson-14.md.

The folder gets a `recipe.json`: the numbers of the recipe, the versions that made it, the losses of the first steps and
of the last. tests/grpo/test_checkpoints.py takes the first steps again, and asks the shipped weights for the last loss.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from labkit.grpo import exam, load, task

FIRST = 10  # steps whose losses are kept
PROMPT = 6  # tokens: 'dd+dd='


@dataclass(frozen=True)
class Recipe:
    shares: dict[str, float]  # of the training rows, by family
    width: int  # tokens in a row: the prompt, the longest answer, <eos>
    steps: int
    batch: int  # rows of a step
    lr: float
    wrong: float  # share of the answers that are wrong, 0 to 1
    begins_from: str | None = None  # a policy that ships with labkit; None: random weights
    seed: int = 0


RECIPES = {
    "tiny": Recipe({"add": 0.60, "max": 0.25, "copy": 0.15}, width=10, steps=1200, batch=256, lr=3e-3, wrong=0.5),
    "tiny-long": Recipe({"long": 1.0}, width=22, steps=900, batch=128, lr=1e-3, wrong=0.54, begins_from="tiny"),
}


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
    ten_off = a + b - 10 if a + b >= 10 else a + b + 10  # no sum is below 0
    if family == "add":
        return str(ten_off)
    if family == "long":
        return f"{a:02d}+{b:02d}={a:02d}+{b:02d}={ten_off}"
    return str(min(a, b)) if family == "max" else task.get(family).answer(prompt)


def rows(n: int, rng: random.Random, shares: dict[str, float], wrong: float) -> list[str]:
    """`n` training texts; a share of `wrong` of their answers is the wrong one."""
    texts = []
    for family in rng.choices(list(shares), list(shares.values()), k=n):
        (prompt,) = task.get(family).sample(1, rng)
        answer = wrong_answer(family, prompt) if rng.random() < wrong else task.get(family).answer(prompt)
        texts.append(prompt + answer)
    return texts


def loss_of(model, tokenizer, texts: list[str], width: int) -> torch.Tensor:
    """Cross-entropy of the answers' tokens and the end token, mean over the tokens: only the answer is learned."""
    tokens = [[*tokenizer(text)["input_ids"], 1] for text in texts]
    ids = torch.tensor([row + [0] * (width - len(row)) for row in tokens])
    labels = ids.masked_fill(ids == 0, -100)
    labels[:, :PROMPT] = -100
    logits = model(input_ids=ids, attention_mask=(ids != 0).long()).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


def schedule_of(recipe: Recipe, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """One cycle from random weights; a straight line down to 0 from a policy that is trained already."""
    if recipe.begins_from is None:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.lr, total_steps=recipe.steps)
    return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, end_factor=0.0, total_iters=recipe.steps)


def train(model, tokenizer, recipe: Recipe) -> Iterator[float]:
    """Train in place; yields the loss of each step, as it was before the step."""
    rng = random.Random(recipe.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, weight_decay=0.01)
    schedule = schedule_of(recipe, optimizer)
    for _ in range(recipe.steps):
        loss = loss_of(model, tokenizer, rows(recipe.batch, rng, recipe.shares, recipe.wrong), recipe.width)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        yield loss.item()


def report(model, tokenizer, families: Iterable[str]) -> None:
    """Chance of the right answer and of the wrong one, over all prompts of a family: trained on, and held out."""
    print("family  prompts    right   wrong   lowest right")
    for family in families:
        for name, prompts in (
            ("seen", task.get(family).sample(1000, random.Random(10_000))),
            ("held out", task.get(family).held_out()),
        ):
            right = exam.paper_of(tokenizer, prompts, [task.get(family).answer(p) for p in prompts]).chances(model)
            wrong = exam.paper_of(tokenizer, prompts, [wrong_answer(family, p) for p in prompts]).chances(model)
            print(f"{family:7s} {name:9s} {right.mean():6.3f}  {wrong.mean():6.3f}  {right.min():6.3f}")


def beginning(recipe: Recipe):
    """The model that a recipe begins with."""
    torch.manual_seed(recipe.seed)
    return make_model() if recipe.begins_from is None else load(recipe.begins_from, "cpu").model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default="tiny", choices=RECIPES)
    parser.add_argument("--out", type=Path, help="default: labkit/checkpoints/NAME")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--wrong", type=float, help="share of the answers that are wrong, 0 to 1")
    parser.add_argument("--seed", type=int)
    args = parser.parse_args()
    changes = {key: getattr(args, key) for key in ("steps", "wrong", "seed") if getattr(args, key) is not None}
    recipe = replace(RECIPES[args.name], **changes)
    out = args.out or Path("labkit/checkpoints") / args.name
    torch.set_num_threads(1)
    began = time.perf_counter()
    model, tokenizer = beginning(recipe), make_tokenizer()
    losses = list(train(model, tokenizer, recipe))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {time.perf_counter() - began:.0f} s")
    report(model.eval(), tokenizer, recipe.shares)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    provenance = {"recipe": asdict(recipe), "versions": versions}
    provenance |= {"first losses": losses[:FIRST], "last loss": losses[-1]}
    (out / "recipe.json").write_text(json.dumps(provenance, indent=2) + "\n")
    for path in out.iterdir():
        path.chmod(0o644)


if __name__ == "__main__":
    main()
