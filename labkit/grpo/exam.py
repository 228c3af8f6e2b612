"""The exam: how likely is a right answer, exactly, on prompts that no run is trained on?

A completion is right when it is the answer and then the end. Its probability is the product of its
tokens' probabilities: one forward pass gives it, and nothing is sampled. So two exams of one policy
give the same number, and a difference of 0.01 between two policies is a difference of the policies.
The mean reward of a round's 64 completions scatters by about 0.06 where nothing is learned.

    train("add", exam=True)                       before the first round and after every round
    chance(trainer.model, tokenizer, "add")       of any causal language model, for example TRL's
    labkit.learning_curves({"bug": runs, ...})    the picture

The probability is that of sampling at temperature 1 with no filter. This file trains nothing and
draws nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import task as tasks

# Prompts in a forward pass. With a vocabulary of 50,000 the logits of 50 short rows take 100 MB.
ROWS = 50


@dataclass(frozen=True)
class Paper:
    """Prompts with their right answers as tokens, so that a run encodes them once."""

    parts: list[Part]  # one forward pass each

    def chances(self, model: Any) -> torch.Tensor:
        """Probability of each right answer: [P], 0..1, on the CPU. Dropout is off while it runs."""
        with torch.no_grad(), evaluating(model):
            return torch.cat([part.chances(model) for part in self.parts]).cpu()

    def mean(self, model: Any) -> float:
        """The mean probability of the right answer, 0..1."""
        return float(self.chances(model).mean())


@dataclass(frozen=True)
class Part:
    """Rows of prompt, answer and end token, padded on the right.

    There the padding changes nothing: a causal model looks at nothing that follows.
    """

    ids: torch.Tensor  # [P, T]
    attention_mask: torch.Tensor  # [P, T], 1 = counts
    answer_mask: torch.Tensor  # [P, T], 1 = a token of the answer, the end token included

    def chances(self, model: Any) -> torch.Tensor:
        device = next(model.parameters()).device
        ids, attention_mask = self.ids.to(device), self.attention_mask.to(device)
        answer = self.answer_mask.to(device)
        # nothing is asked after the last token, so it is not fed
        out = model(input_ids=ids[:, :-1], attention_mask=attention_mask[:, :-1], use_cache=False)
        logp = out.logits.float().log_softmax(-1)  # [P, T - 1, V]: position t predicts token t + 1
        logp = logp.gather(-1, ids[:, 1:, None]).squeeze(-1)  # [P, T - 1] nats
        # a sum of log-probs: the probability that all tokens of the answer are drawn in turn
        return torch.where(answer[:, 1:].bool(), logp, 0.0).sum(1).exp()


def chance(model: Any, tokenizer: Any, family: str = "add") -> float:
    """Mean probability of the right answer over the family's 150 held-out prompts, 0..1.

    model       a causal language model: called with `input_ids` and `attention_mask`, returns
                `.logits` [B, T, V]
    tokenizer   its tokenizer; needs an end-of-sequence token

    Raises: ValueError for an unknown family, or a tokenizer without an end token.
    """
    return paper(tokenizer, family).mean(model)


def paper(tokenizer: Any, family: str, prompts: Sequence[str] | None = None) -> Paper:
    """A family's exam: all its held-out prompts, or those of `prompts` that are of it.

    Raises: as `chance`; ValueError when none of `prompts` is of the family.
    """
    task = tasks.get(family)
    if prompts is None:
        prompts = task.held_out()
    else:
        prompts = [prompt for prompt in prompts if tasks.of_prompt(prompt) is task]
        if not prompts:
            raise ValueError(f"exam: no prompt of the family {family!r}; expected some, or True")
    return paper_of(tokenizer, prompts, [task.answer(prompt) for prompt in prompts])


def paper_of(tokenizer: Any, prompts: Sequence[str], answers: Sequence[str]) -> Paper:
    """An exam of your own: prompts, and the one right answer to each.

    Raises: ValueError when there are not as many answers as prompts, or the tokenizer has no end
    token.
    """
    if tokenizer.eos_token_id is None:
        problem = "the tokenizer has no end-of-sequence token, so no answer ever ends"
        raise ValueError(f"exam: {problem}; set eos_token")
    prompt_ids = tokenizer(list(prompts))["input_ids"]
    answer_ids = tokenizer(list(answers), add_special_tokens=False)["input_ids"]
    rows = []
    for prompt, answer in zip(prompt_ids, answer_ids, strict=True):
        rows.append((prompt, [*answer, tokenizer.eos_token_id]))
    return Paper([_part(rows[at : at + ROWS]) for at in range(0, len(rows), ROWS)])


def _part(rows: list[tuple[list[int], list[int]]]) -> Part:
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    attention_mask, answer_mask = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        attention_mask[row, :end] = 1
        answer_mask[row, len(prompt) : end] = 1
    return Part(ids, attention_mask, answer_mask)


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every submodule has its own mode again."""
    # each by itself: some may have been frozen in evaluation mode, and `model.train()` would thaw
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
