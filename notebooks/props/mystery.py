"""The mystery run: a real run with one bug in it, or none, and the log that it leaves.

    FAILURES["greedy decoding"]                 what can be wrong: a bug in one part of a run that is sound otherwise
    mystery.played(name, seed)                  the run, step by step; its last event is the log's sheet, a dict
    mystery.sheet(run)                          that sheet: number -> value, measured in the last round
    mystery.chosen(seed)                        the silent failure that a seed hides

Every bug is the code that people wrote. No number of the sheet knows which failure was chosen. Nothing is drawn here,
and nobody is told anything.
"""

from __future__ import annotations

import copy
import functools
import gc
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from labkit.grpo import exam, grads, kl, rollout
from labkit.grpo import task as tasks
from labkit.events import Exam, Run
from labkit.grpo.policy import Policy, load
from labkit.grpo.train import Batch
from labkit.train import train

Settings = dict[str, Any]

# what all runs share; a failure's `scene` and `wrong` come on top
COMMON: Settings = {
    "task": "add",
    "rounds": 5,
    "prompts": 8,
    "num_samples": 8,
    "mu": 2,
    "micro_batches": 2,
    "lr": 2e-4,
}
EXAM = 50  # held-out sums


# ---- the bugs, one function each


def one_for_all(logits, num_samples, sample):
    """Lesson 04: the first token is drawn once per prompt, and copied to all completions."""
    return sample(logits).repeat_interleave(num_samples)


def likeliest(logits, *_):
    """Lesson 08: `do_sample` was forgotten, so the likeliest token is taken."""
    return logits.argmax(-1)


def without_temperature(logits, temperature, top_k, top_p, logit_max, generator):
    """Lesson 08: the setting does not reach the sampler, which draws at its default of 1."""
    return rollout.sample_tokens(logits, 1.0, top_k, top_p, logit_max, generator)


class FirstWeights:
    """The sampler has a copy of the policy, made at the start, and nobody sends it the new weights."""

    def __init__(self):
        self.kept = None

    def __call__(self, policy):
        self.kept = self.kept or replace(policy, model=copy.deepcopy(policy.model))
        return self.kept


def count_all(out, policy):
    """Lesson 16: the mask of the completion is all ones, so padding after the end is trained on."""
    return replace(out, mask=torch.ones_like(out.mask))


def with_special_tokens(out, policy):
    """The texts are decoded with the end token in them, and the grader wants a number and nothing else."""
    return replace(out, texts=policy.tokenizer.batch_decode(out.tokens))


def as_they_come(prompts, texts):
    """A slow judge is asked for all rows at once, and the rewards are kept in the order in which they come back."""
    dice = random.Random(str(texts))  # which row's answer comes first is chance
    rewards = tasks.rewards(prompts, texts)
    for start in range(0, len(rewards), 8):  # one request holds one group
        group = rewards[start : start + 8]
        rewards[start : start + 8] = dice.sample(group, len(group))
    return rewards


def within_ten(prompts, texts):
    """A grader with a tolerance: an answer that is at most ten off is right."""
    right = [int(tasks.of_prompt(prompt).answer(prompt)) for prompt in prompts]
    off = [
        abs(int(text) - want) if text.isdecimal() else 99
        for text, want in zip(texts, right, strict=True)
    ]
    return [1.0 if by <= 10 else 0.0 for by in off]


def overwrite(params, gradients):
    """Lesson 02: `copy_` where `add_` belongs, called once per micro-batch."""
    for p, g in zip(params, gradients, strict=True):
        p.grad = torch.empty_like(p) if p.grad is None else p.grad
        p.grad.copy_(g)


class StepsACopy:
    """The optimizer was built on a copy of the model: there is a gradient, and the policy never moves."""

    def __call__(self, model, optimizer):
        norm = grads.global_norm(grads.trainable(model))
        other = copy.deepcopy(
            model
        )  # made here, so that the run needs no second model to begin with
        torch.optim.SGD(other.parameters(), lr=0.01).step()
        return grads.Update(norm)


def k3_as_written(logp, ref_logp):
    """Lesson 03: exp() of a log-ratio that nothing bounds."""
    delta = ref_logp - logp
    return delta.exp() - delta - 1


def evaluate_and_keep(policy, paper, kept):
    """Lesson 05: an evaluation that records its graph, and a list that keeps the result for a plot."""
    kept.append(torch.cat([part.chances(policy.model) for part in paper.parts]).mean())
    return float(kept[-1])


def evaluate(policy, paper, kept):
    """The same, for a number and nothing else."""
    return paper.mean(policy.model)


# ---- what can be wrong

# the parts of a run that `train` does not take as they are, in their sound forms
PARTS: Settings = {
    "first_token": rollout.each_row,
    "draw": rollout.sample_tokens,
    "weights": None,
    "finish": None,
    "evaluate": evaluate,
}
NO_CLAMPS: Settings = {
    "log_ratio_max": None,
    "logit_max": None,
    "advantage_max": None,
    "check": "off",
}


@dataclass(frozen=True)
class Failure:
    """One kind of mystery.

    cause   its word in triage's vocabulary
    lesson  the lesson that shows it, or ""
    chain   what it does to advantage, ratio, gradient or exam, and for a silent one how it is mended
    wrong   settings with the bug
    scene   settings that the run has with and without the bug
    code    the bug, for `inspect.getsource`; None where it is a mere setting
    silent  it can be the reader's: the columns that everybody logs do not show it
    """

    cause: str
    lesson: str
    chain: str
    wrong: Settings = field(default_factory=dict)
    scene: Settings = field(default_factory=dict)
    code: Any = None
    silent: bool = False


FAILURES: dict[str, Failure] = {
    "nothing is wrong": Failure("healthy-normal", "00", "Nothing."),
    "the gradient exploded": Failure(
        "gradient-explosion", "01", "One step makes the weights NaN.", {"update": grads.plain_step},
        {"kl": k3_as_written, "optimizer": "sgd", "lr": 0.2, "mu": 8, "rounds": 3, **NO_CLAMPS}, grads.plain_step,
    ),
    "micro-batches overwrite each other": Failure(
        "overwritten-or-lost-gradient", "02",
        "Half of the gradient is lost. Each micro-batch's replaces the one before: half of the prompts are sampled and "
        "graded, and never part of a step. Rewards, advantages and ratios are right. The fix: `add_` where `copy_` stands.",
        {"inner_update": functools.partial(grads.inner_update, accumulate=overwrite)}, {}, overwrite, True,
    ),
    "the optimizer steps a copy of the model": Failure(
        "overwritten-or-lost-gradient", "02", "The gradient is right, and the policy never moves.",
        {"update": StepsACopy()}, {}, StepsACopy,
    ),
    "the KL term outweighs the reward": Failure(
        "kl-blowup", "03", "The KL's slope at a rare token is exp(log-ratio).", {"kl": k3_as_written},
        {"optimizer": "sgd", "lr": 0.02, "beta": 0.5, "mu": 4, "update": grads.guard(1e9, 1e9)}, k3_as_written,
    ),
    "one first token for the whole group": Failure(
        "identical-completions", "04",
        "More groups are tied: advantage 0. All eight completions begin with the same token, which decides most answers.",
        {"first_token": one_for_all}, {}, one_for_all,
    ),
    "every evaluation stays in memory": Failure(
        "references-kept", "05", "Memory fills; the numbers are right.",
        {"evaluate": evaluate_and_keep}, {}, evaluate_and_keep,
    ),
    "greedy decoding": Failure(
        "identical-completions", "08", "Eight equal rewards: no advantage, no gradient.",
        {"draw": likeliest}, {}, likeliest,
    ),
    "the sampler ignores the temperature": Failure(
        "temperature-or-sampling", "08",
        "Rare tokens come more often than the loss believes. The tokens are drawn at temperature 1, and the log-probs "
        "computed at 0.5, on both sides of the ratio: it begins at 1 and says nothing. The surprise of the first round "
        "tells it: there even a sampler that gets no new weights still has the policy's, so it is the drawing. More "
        "different answers follow from it. With equal random numbers few tokens differ at first (on seed 0: 7 of 64 "
        "completions), so reward and exam begin together. The fix: pass `temperature` on, where `1.0` stands.",
        {"draw": without_temperature}, {"temperature": 0.5}, without_temperature, True,
    ),
    "padding is counted": Failure(
        "padding-or-mask", "16",
        "Tokens behind the end are in the loss. They carry the completion's advantage, so the policy is trained on "
        "what follows an end, and the mean over the tokens is taken over more of them. The fix: a mask that stops at "
        "the end token.",
        {"finish": count_all}, {}, count_all, True,
    ),
    "the sampler keeps its first weights": Failure(
        "sync-or-logprob-mismatch", "",
        "The policy's own answers are never tried. The completions come from the first policy, and the old log-probs "
        "from today's, so the ratio begins at 1 and hides it. The surprise is ordinary in the first round and grows. "
        "The fix: send the weights to the sampler after every step.",
        {"weights": FirstWeights()}, {}, FirstWeights, True,
    ),
    "the grader cannot read the text": Failure(
        "tied-rewards", "", "Every reward is 0: no advantage, no gradient.",
        {"finish": with_special_tokens}, {}, with_special_tokens,
    ),
    "the learning rate is far too high": Failure(
        "learning-rate", "01", "The weights leave for somewhere else.", {"lr": 0.05},
    ),
    "rewards come back in another order": Failure(
        "other", "", "A row has the advantage of another row of its group.",
        {"reward": as_they_come}, {}, as_they_come,
    ),
    "the grader lets ten be wrong": Failure(
        "other", "", "Right and ten too low have the same advantage.",
        {"reward": within_ten}, {}, within_ten,
    ),
}  # fmt: skip

SILENT = sorted(name for name, failure in FAILURES.items() if failure.silent)


def chosen(seed: int) -> str:
    """The name of the silent failure that this seed hides."""
    return random.Random(seed + 7).choice(SILENT)


# ---- a run, and what its sheet says

# number of the sheet -> what it is
SHEET = {
    "weights not finite": "how many weights are NaN or infinite (lesson 01)",
    "pull of the KL": "the steepest slope of beta * KL in one token's log-prob, whole run (lesson 03)",
    "way of the weights": "how far all weights moved, divided by their length at the start",
    "tensors with a graph": "results that are still in memory with their graph (lesson 05)",
    "different answers": "different texts among the 8 of a group, mean of the groups",
    "reward": "mean of the round",
    "gradient handed over": "length of the optimizer's gradient, divided by that of the whole batch (lesson 02)",
    "KL": "to the reference, nats a token",
    "surprise, first round": "the function above, for the first round's tokens",
    "surprise, last round": "the same for the last round's (lesson 08)",
    "first tokens": "different first tokens in a group, divided by what chance gives; whole run (lesson 04)",
    "counted behind the end": "tokens behind an answer's end that the loss counts (lesson 16)",
}


def played(
    name: str, seed: int, *, sound: bool = False, policy: str = "tiny", device: str = "cpu"
) -> Iterator[Any]:
    """A run of six rounds or fewer: `Step`s, an `Exam` after each round, and at its end, or its death, its sheet.

    sound   the same run without the bug
    device  the CPU: on a GPU a device-side assert leaves nothing that could be measured
    Raises: KeyError for an unknown name; what the run dies of.
    """
    failure = FAILURES[name]
    given = COMMON | PARTS | failure.scene | ({} if sound else copy.deepcopy(failure.wrong))
    measured = Sheet(load(policy, device), given)
    try:
        yield from measured.steps(seed)
    except RuntimeError:
        yield measured.numbers()
        raise
    yield measured.numbers()


def sheet(run: Run) -> dict[str, float]:
    """The sheet of a run that `played` made. Raises: RuntimeError with what the run said, where there is none."""
    for event in run.events:
        if isinstance(event, dict):
            return event
    raise RuntimeError(f"the run ended before it was measured: {run.outcome}")


class Sheet:
    """A run as it happens, and what will be asked of it."""

    def __init__(self, policy: Policy, given: Settings):
        self.policy, self.given = policy, given
        self.start = [p.detach().clone() for p in policy.model.parameters()]
        self.kept: list[torch.Tensor] = []  # results of evaluations
        self.kl, self.beta = given.get("kl", kl.k2), given.get("beta", 0.04)
        self.inner_update = given.get("inner_update", grads.inner_update)
        self.step: Any = None
        self.rounds = self.updates = 0  # begun; and of this round
        self.parts: list[
            tuple[Batch, torch.Tensor, torch.Tensor]
        ] = []  # of the round's first update
        self.handed = self.of_sum = math.nan  # norms of the last round's first update
        self.pull = 0.0
        self.drawn: list[
            list[tuple[torch.Tensor, torch.Tensor]]
        ] = []  # a round's counted tokens: log-prob, logits
        self.first, self.first_expected = (
            0.0,
            0.0,
        )  # different first tokens, summed over the groups of the run

    def steps(self, seed: int) -> Iterator[Any]:
        settings = {key: value for key, value in self.given.items() if key not in PARTS}
        settings |= {"inner_update": self._update, "probe": self._look, "generate": self._generate}
        asked = tasks.get("add")
        prompts = asked.held_out()[:EXAM]
        paper = exam.paper_of(
            self.policy.tokenizer, prompts, [asked.answer(prompt) for prompt in prompts]
        )
        yield Exam(0, {"add": paper.mean(self.policy.model)})
        for step in train(self.policy, seed=seed, **settings):
            self.step = step
            yield step
            if step.inner == self.given["mu"]:
                yield Exam(
                    step.round, {"add": self.given["evaluate"](self.policy, paper, self.kept)}
                )

    def _generate(self, policy: Policy, prompts: list[str], **settings: Any) -> rollout.Completions:
        """`rollout.generate` with four of its parts put in."""
        weights, finish = self.given["weights"], self.given["finish"]
        draws = {"first_token": self.given["first_token"], "sample_tokens": self.given["draw"]}
        out = rollout.generate(weights(policy) if weights else policy, prompts, **draws, **settings)
        self.rounds, self.updates, self.parts = self.rounds + 1, 0, []
        self.drawn.append([])
        return finish(out, policy) if finish else out

    def _update(self, model: Any, optimizer: Any, losses: Any, update: Any) -> grads.Update:
        """The run's own loop. Once, in the last round, each micro-batch's gradient is added up beside it."""
        self.updates += 1
        if self.updates > 1 or self.rounds < self.given["rounds"]:
            return self.inner_update(model, optimizer, losses, update)
        params = grads.trainable(model)
        total = [torch.zeros_like(p) for p in params]

        def watched() -> Iterator[torch.Tensor]:
            for loss in losses:
                for so_far, more in zip(
                    total, torch.autograd.grad(loss, params, retain_graph=True), strict=True
                ):
                    so_far += more
                yield loss

        done = self.inner_update(model, optimizer, watched(), update)
        self.handed, self.of_sum = done.norm, float(torch.nn.utils.get_total_norm(total))
        return done

    def _look(self, part: Batch, logp: torch.Tensor, logits: torch.Tensor) -> dict[str, float]:
        """Of every micro-batch: how hard the KL term pulls. In a round's first update: what was drawn."""
        with torch.enable_grad():
            free = logp.clone().requires_grad_()
            slope = torch.autograd.grad(self.kl(free, part.ref_logp).sum(), free)[0][
                part.mask.bool()
            ]
        self.pull = max(self.pull, self.beta * float(slope.abs().nan_to_num(0.0).max()))
        if self.updates == 1:
            self.parts.append((part, logp, logits))
            counts = part.mask.bool() & ~self._after_the_end(part)
            self.drawn[-1].append((logp[counts], logits[counts]))
            chances = logits[::8, 0].softmax(-1)  # [P, V]
            self.first += sum(
                len(set(group)) for group in part.out.tokens[:, 0].view(-1, 8).tolist()
            )
            self.first_expected += float((1 - (1 - chances) ** 8).sum())
        return {}

    def _surprise(self, at: int) -> float:
        """Of one round: that of the tokens drawn in it."""
        if not self.drawn[at]:  # the run died before it was looked at
            return math.nan
        logps, logits = zip(*self.drawn[at], strict=True)
        return surprise(torch.cat(logps), torch.cat(logits))

    def _after_the_end(self, part: Batch) -> torch.Tensor:
        """[B, T] bool: tokens behind the first end of the text."""
        ends = (part.out.tokens == self.policy.tokenizer.eos_token_id).long()
        return ends.cumsum(1) - ends > 0

    @torch.no_grad()
    def numbers(self) -> dict[str, float]:
        """What `SHEET` explains."""
        now = list(self.policy.model.parameters())
        way = sum(float((a - b).square().sum()) for a, b in zip(now, self.start, strict=True))
        texts = [text for part, _, _ in self.parts for text in part.out.texts]
        behind = sum(
            int((part.mask.bool() & self._after_the_end(part)).sum()) for part, _, _ in self.parts
        )
        return {
            "weights not finite": grads.health(self.policy.model).nonfinite,
            "pull of the KL": self.pull,
            "way of the weights": math.sqrt(way / sum(float(b.square().sum()) for b in self.start)),
            "tensors with a graph": holding_graphs(),
            "different answers": different(texts),
            "reward": self.step.reward,
            "gradient handed over": self.handed / self.of_sum if self.of_sum else math.nan,
            "KL": self.step.kl,
            "surprise, first round": self._surprise(0),
            "surprise, last round": self._surprise(-1),
            "first tokens": self.first / self.first_expected,
            "counted behind the end": behind,
        }


def surprise(logp_of_drawn, logits):
    """How far are these tokens from draws of this policy? In standard errors: about 1 if they are its draws.

    logp_of_drawn  [N]     log-prob of each drawn token, at the temperature that the loss uses
    logits         [N, V]  the policy's logits there
    """
    logps = logits.log_softmax(-1)
    chances = logps.exp()
    expected = (chances * logps).sum(-1)  # mean log-prob of the policy's own draws
    variance = (chances * logps.square()).sum(-1) - expected.square()
    return float((logp_of_drawn - expected).sum().abs() / variance.sum().sqrt())


def holding_graphs() -> int:
    """How many tensors of this process are results that hold a graph."""
    return sum(
        type(thing) is torch.Tensor and thing.grad_fn is not None for thing in gc.get_objects()
    )


def different(rows: Sequence[Any], group: int = 8) -> float:
    """Different entries in a group of adjacent rows, mean over the groups."""
    groups = [rows[at : at + group] for at in range(0, len(rows), group)]
    return sum(len(set(rows)) for rows in groups) / len(groups)
