"""The mystery run: plays a run, and lets instruments look at its first and its last round. None knows what is in it.

    run = sandbox.run(mystery.play, hooks, instruments, seed=0)    its steps, and what each instrument says

The faults stand in suspects.py, the instruments in lesson 18; asks.py keeps the budget. This file draws nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from labkit.grpo import Hooks, Policy, Sampling, exam, grads, load, train
from labkit.grpo.batch import Batch
from labkit.grpo.rollout import Completions

GROUP = 8
MORE = 8  # groups to a prompt that are drawn for the instruments alone: 64 answers
SAMPLING = Sampling()  # lesson 00's


@dataclass
class Look:
    """One round, as an instrument gets it. V: vocabulary, P: prompts; in a mask 1 means counted.

    prompts, answers, rewards   the round's 64 rows, with the rewards that the trainer used
    tokens, mask                [64, T] the same rows as tokens, and what the loss counts of them
    end                         the token that ends an answer
    draws                       [P, MORE, GROUP, T] answers that the run's own sampler draws for the instruments alone
    logp, logits                [N] log-prob of each of their tokens, by the policy that is trained, before the
                                round's first update, at the temperature of the loss; and its logits [N, V]
    first_group                 [N] bool: the token stands in the first of its prompt's groups
    first                       [P, V] the policy's chances of an answer's first token
    gradients                   of each micro-batch of the first update: a list of tensors
    handed                      the gradient that the optimizer got in it
    before, after               all weights, before the run and after the round
    exams                       chance of a right answer on 150 held-out sums, before the run and after the round
    """

    prompts: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    tokens: Any = None
    mask: Any = None
    end: int = -1
    draws: Any = None
    logp: Any = None
    logits: Any = None
    first_group: Any = None
    first: Any = None
    gradients: list[list[torch.Tensor]] = field(default_factory=list)
    handed: list[torch.Tensor] = field(default_factory=list)
    before: list[torch.Tensor] = field(default_factory=list)
    after: list[torch.Tensor] = field(default_factory=list)
    exams: list[float] = field(default_factory=list)


Instrument = Callable[[Look], float]


def play(
    hooks: Hooks,
    instruments: Mapping[str, Instrument],
    *,
    seed: int,
    policy: str = "tiny",
    device: str = "cpu",
    rounds: int = 5,
    sampling: Sampling = SAMPLING,
    **settings: Any,
) -> Iterator[Any]:
    """A run with these hooks: its steps, and after its first and its last round a dict of what each instrument says.

    The instruments take nothing from the run: it draws the same tokens with them and without.
    """
    loaded = load(policy, device)
    watcher = Watcher(loaded, hooks, sampling, seed, rounds)
    watched = dataclasses.replace(
        hooks,
        generate=watcher.generate,
        reward=watcher.reward,
        inner_update=watcher.inner_update,
        probe=watcher.probe,
    )
    settings |= {"seed": seed, "rounds": rounds, "sampling": sampling, "hooks": watched}
    for step in train("add", policy=loaded, **settings):
        yield step
        if step.inner == settings.get("mu", 4) and watcher.looks():
            look = watcher.look_after_the_round()
            yield {name: float(measure(look)) for name, measure in instruments.items()}


class Watcher:
    """Stands between the trainer and its hooks, and keeps what the instruments may see of a round."""

    def __init__(self, policy: Policy, hooks: Hooks, sampling: Sampling, seed: int, rounds: int):
        self.policy, self.hooks, self.sampling = policy, hooks, sampling
        self.round, self.rounds = 0, rounds
        # numbers of its own, so that the run draws the tokens that it would draw without it
        self.dice = torch.Generator(policy.device).manual_seed(1000 + seed)
        self.before = self.weights()
        self.paper = exam.paper(policy.tokenizer, "add")
        self.exam_before = self.paper.mean(policy.model)
        self.look = Look()
        self.parts: list[Batch] = []

    def looks(self) -> bool:
        """Instruments look at the first round and at the last."""
        return self.round in (1, self.rounds)

    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.policy.model.parameters()]

    def generate(self, policy: Policy, prompts: list[str], **settings: Any) -> Completions:
        out = self.hooks.generate(policy, prompts, **settings)
        self.round += 1
        self.look, self.parts = Look(end=policy.tokenizer.eos_token_id), []
        if not self.looks():
            return out
        # each prompt stands in the list MORE times: groups of 8, as the run has them
        repeated = []
        for prompt in prompts:
            repeated += [prompt] * MORE
        more = self.hooks.generate(policy, repeated, **settings | {"generator": self.dice})
        self.keep_draws(more, len(prompts))
        return out

    @torch.no_grad()
    def keep_draws(self, more: Completions, prompts: int) -> None:
        """What the trainer's policy says of the sampler's draws."""
        look, length = self.look, more.tokens.shape[1]
        # the tokens up to the first end, whatever the run counts
        counts = before_the_end(more.tokens, look.end)
        attention = torch.cat([more.prompt_mask, counts.to(more.prompt_mask.dtype)], 1)
        logp, logits = self.hooks.scorer(
            self.policy.model, more.ids, attention, length, temperature=self.sampling.temperature
        )
        look.draws = more.tokens.view(prompts, MORE, GROUP, length)
        look.logp, look.logits = logp[counts], logits[counts]
        group = torch.arange(len(logp), device=logp.device) // GROUP  # of each row
        look.first_group = (group % MORE == 0)[:, None].expand_as(counts)[counts]
        look.first = logits[:: MORE * GROUP, 0].softmax(-1)

    def reward(self, prompts: Sequence[str], answers: Sequence[str]) -> Sequence[float | None]:
        rewards = self.hooks.reward(prompts, answers)
        look = self.look
        look.prompts, look.answers, look.rewards = list(prompts), list(answers), list(rewards)
        return rewards

    def probe(self, part: Batch, logp: torch.Tensor, logits: torch.Tensor) -> dict[str, float]:
        self.parts.append(part)
        return {}

    def inner_update(self, model: Any, optimizer: Any, losses: Any, update: Any) -> grads.Update:
        """The run's own. In a round's first update each micro-batch's gradient is computed beside it."""
        if self.look.handed or not self.looks():
            return self.hooks.inner_update(model, optimizer, losses, update)
        parameters, look = grads.trainable(model), self.look
        self.parts.clear()

        def each_with_its_gradient() -> Iterator[torch.Tensor]:
            for loss in losses:
                look.gradients.append(
                    list(torch.autograd.grad(loss, parameters, retain_graph=True))
                )
                yield loss

        def update_with_a_look(model: Any, optimizer: Any) -> grads.Update:
            look.handed = [parameter.grad.clone() for parameter in parameters]
            return update(model, optimizer)

        done = self.hooks.inner_update(
            model, optimizer, each_with_its_gradient(), update_with_a_look
        )
        look.tokens = torch.cat([part.out.tokens for part in self.parts])
        look.mask = torch.cat([part.mask for part in self.parts])
        return done

    def look_after_the_round(self) -> Look:
        self.look.before, self.look.after = self.before, self.weights()
        self.look.exams = [self.exam_before, self.paper.mean(self.policy.model)]
        return self.look


def before_the_end(tokens: torch.Tensor, end: int) -> torch.Tensor:
    """[B, T] bool: the tokens of an answer, its end included."""
    ends = (tokens == end).long()
    return ends.cumsum(1) - ends == 0
