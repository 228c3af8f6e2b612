"""Are tokens drawn at the temperature that was asked for, and from the whole vocabulary?

It compares tokens with the logits that they should come from, and does not look into the sampler: a flag that has no
effect is as good as none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from labkit.common import number
from labkit.sampling import Temperature, estimate_temperature, quantiles

from .first_token import token_rows
from .report import PASS, CannotJudge, Report, Verdict, attempt, fail, inconclusive, judged

CLAIM = "what is drawn has the temperature that was asked for, and nothing is cut off"
TEMPERATURES = (0.5, 0.8, 1.0, 1.6)
FALSE_ALARM = 1e-6  # the chance, in each comparison, of accusing sound code
# At each temperature. Of 200 tokens each should be drawn 40 times in all: one that never comes shows from 20 on.
ROWS, VOCABULARY = 2000, 200
PROMPTS, TOKENS = 400, 1000  # of a model: what is asked for, and how many of the tokens are looked at
COLDEST, HOTTEST = 1e-6, 1e30  # stand for greedy and for uniform
RULES: dict[str, Callable[[float], float]] = {
    "The temperature has no effect: tokens are drawn at 1, whatever is asked. Likely it is not passed on, or "
    "probabilities are scaled in place of logits.": lambda t: 1.0,
    "The temperature is applied twice. Likely a warper in logits_processor beside the flag, or logits that are "
    "divided before the sampler divides them.": lambda t: t * t,
    "The logits are multiplied by the temperature; divide them.": lambda t: 1 / t,
}


def temperature(sample: Callable[..., Any], model: Any = None) -> Report:
    """Judge `sample(logits, temperature)`: logits [N, V] to one token per row, [N]; every row has logits of its own.

    With a `model`, judge `generate(ids, temperature)`: prompts [N, T0] to tokens, with or without the prompts in front.
    Such as `lambda ids, t: model.generate(ids, do_sample=True, temperature=t, max_new_tokens=4)`.

        model  logits are `model(input_ids=...).logits`; its generation_config says which tokens end a row. The prompts
               are 400 of 4 random tokens

    Refuses greedy decoding, a temperature that is ignored, applied twice or upside down, top-k, top-p, min-p, and what
    these logits did not give: penalties, suppressed tokens, exchanged rows, rounded logits. A token is missed that
    should have come 20 times. Inconclusive where a sampler with one of these mistakes could have drawn the same.
    """

    def judge(evidence: dict[str, Any]) -> Verdict:
        ask = _own_logits(sample) if model is None else _of_model(sample, model)
        draws = [_Drawn(t, *ask(t)) for t in TEMPERATURES]
        measured = [drawn.measured for drawn in draws]
        evidence["asked"] = list(TEMPERATURES)
        evidence["measured"] = [number(each.value) if each.value else each.verdict for each in measured]
        evidence["tokens"] = [len(drawn.tokens) for drawn in draws]
        if model is not None and all(torch.equal(drawn.tokens, draws[0].tokens) for drawn in draws):
            return fail("The same tokens at every temperature: none is drawn. Likely greedy, do_sample is missing.")
        every = _joined(draws, TEMPERATURES)
        off = [drawn for drawn in draws if not drawn.fits(drawn.asked)]
        if off or not every.fits(1.0):
            wrong = _wrong_temperature(draws)
            if wrong:
                return fail(wrong)
        if _rounded(every):
            return fail("The logits are rounded to whole numbers. Likely `//` where `/` belongs.")
        # A filter: all draws stay within it, and sound ones would leave it, whatever their temperature.
        likeliest = [drawn.best if drawn in off else drawn.asked for drawn in draws]
        if _joined(draws, likeliest).filter()[0] < math.log(FALSE_ALARM):
            default = "transformers' generate takes top_k = 50 where none is given"
            within = every.filter()[1]
            return fail(f"Part of the vocabulary is never drawn, as with {within}. Switch the filters off: {default}.")
        if off:
            return fail(f"Not what is asked for: at {off[0].asked:g} it is {off[0].measured}.")
        if not every.fits(1.0):
            return fail(f"Not what is asked for, but {every.measured} times that. Likely a penalty.")
        if max(every.gap(), every.worst_count()) > 1:
            return fail("The temperature fits and the tokens do not. Likely a penalty, or exchanged or lost tokens.")
        if _could_be_wrong(draws, every):
            fits = f"at {draws[0].asked:g} the draws fit {draws[0].measured}"
            return inconclusive(f"Too few tokens, or logits that are too sure: {fits}. Take prompts that are open.")
        return PASS

    return judged("temperature", CLAIM, sample, judge)


@dataclass
class _Drawn:
    """What came when this temperature was asked for: logits [N, V] and tokens [N]."""

    asked: float
    logits: Tensor
    tokens: Tensor

    @cached_property
    def measured(self) -> Temperature:
        return estimate_temperature(self.logits, self.tokens)

    @cached_property
    def best(self) -> float:
        """The likeliest temperature, as a number to divide by."""
        value = self.asked if self.measured.value is None else self.measured.value
        return value if value < 0 else min(max(value, COLDEST), HOTTEST)

    def fits(self, t: float) -> bool:
        """Whether tokens drawn at `t` could be such. Chernoff's bound on a sum of logits holds for few tokens too."""
        return self.likelihood_of_best - self.log_likelihood(self.logits / t) <= math.log(2 / FALSE_ALARM)

    @cached_property
    def likelihood_of_best(self) -> float:
        return self.log_likelihood(self.logits / self.best)

    def log_likelihood(self, scaled: Tensor) -> float:
        """Of the tokens, if they were drawn from these logits."""
        return float(scaled.double().log_softmax(-1).gather(1, self.tokens[:, None]).sum())

    @property
    def p(self) -> Tensor:
        return (self.logits.double() / self.asked).softmax(-1)

    def filter(self) -> tuple[float, str]:
        """The top_k, top_p or min_p that all tokens are within and sound ones would leave: log of the chance that they
        do not, and its name."""
        p = self.p
        own = p.gather(1, self.tokens[:, None])
        rank = int((p > own).sum(1).max()) + 1
        ahead = float(torch.where(p > own, p, 0.0).sum(1).max())
        share = float((own[:, 0] / p.amax(1)).min())
        p = p.sort(-1, descending=True).values
        within = {
            f"top_k = {rank}": p[:, :rank],
            f"top_p = {ahead:.2g}": torch.where(p.cumsum(-1) - p <= ahead, p, 0.0),
            f"min_p = {number(share)}": torch.where(p >= share * p[:, :1], p, 0.0),
        }
        return min((float(mass.sum(1).clamp(max=1).log().sum()), name) for name, mass in within.items())

    def gap(self) -> float:
        """Distance of the quantiles' distribution from the uniform one, in units of what chance allows."""
        u, n = quantiles(self.logits, self.tokens, self.asked).sort().values, len(self.tokens)
        steps = torch.arange(n + 1, dtype=u.dtype, device=u.device) / n
        off = max(float((steps[1:] - u).max()), float((u - steps[:-1]).max()))
        return off / math.sqrt(math.log(2 / FALSE_ALARM) / (2 * n))  # Dvoretzky, Kiefer, Wolfowitz; Massart

    def worst_count(self) -> float:
        """How unlikely the worst token's count is, in units of what chance allows (Chernoff's bound)."""
        p = self.p
        drawn, expected = torch.bincount(self.tokens, minlength=p.shape[1]), p.sum(0)
        rate = expected - drawn + torch.xlogy(drawn, drawn / expected.clamp(min=1e-300))
        return float(rate.max()) / math.log(2 * len(rate) / FALSE_ALARM)


def _joined(draws: list[_Drawn], temperatures: Sequence[float]) -> _Drawn:
    """All draws as one, at a temperature of 1 if each was drawn at its entry of `temperatures`."""
    logits = torch.cat([drawn.logits / t for drawn, t in zip(draws, temperatures, strict=True)])
    return _Drawn(1.0, logits, torch.cat([drawn.tokens for drawn in draws]))


def _wrong_temperature(draws: list[_Drawn]) -> str:
    """A mistake that explains every temperature that was measured."""
    if all(drawn.measured.verdict == "greedy" for drawn in draws):
        return "Every token is a likeliest one, whatever is asked: greedy decoding. Likely do_sample is missing."
    if all(abs(drawn.best) > 3 * drawn.asked for drawn in draws):
        return "The tokens have next to nothing to do with these logits. Likely rows or columns are exchanged."
    for hint, rule in RULES.items():
        if _follow(draws, [rule(drawn.asked) for drawn in draws]):
            return hint
    if any(_follow(draws, [drawn.best] * len(draws)) for drawn in draws):
        return "One temperature, whatever is asked. Likely a default, or the model's generation_config, wins."
    return ""


def _follow(draws: list[_Drawn], temperatures: list[float]) -> bool:
    """Whether everything looks as drawn at these, from the whole vocabulary."""
    if not all(drawn.fits(t) for drawn, t in zip(draws, temperatures, strict=True)):
        return False
    return _joined(draws, temperatures).filter()[0] >= math.log(FALSE_ALARM)


def _rounded(every: _Drawn) -> bool:
    """Whether rounded logits explain the tokens far better than those that were given, at any temperature."""
    best = max(every.log_likelihood(every.logits), every.likelihood_of_best)
    rounded = max(every.log_likelihood(every.logits.floor()), every.log_likelihood(every.logits.round()))
    return rounded - best > math.log(1 / FALSE_ALARM)  # a likelihood ratio of a million


def _could_be_wrong(draws: list[_Drawn], every: _Drawn) -> bool:
    """Whether a wrong sampler could have drawn the same."""
    wrong = [[rule(drawn.asked) for drawn in draws] for rule in RULES.values()]
    wrong += [[drawn.best] * len(draws) for drawn in draws]
    for temperatures in wrong:
        if all(drawn.fits(t) for drawn, t in zip(draws, temperatures, strict=True)):
            return True
    too_few_for_a_top_p_of_nine_tenths = 0.9 ** len(every.tokens) > FALSE_ALARM
    return every.fits(COLDEST) or every.fits(HOTTEST) or too_few_for_a_top_p_of_nine_tenths


Ask = Callable[[float], tuple[Tensor, Tensor]]


def _own_logits(sample: Callable[..., Any]) -> Ask:
    def ask(t: float) -> tuple[Tensor, Tensor]:
        # A little of it belongs to the token, as in a model: else softmax(0) would be as good as softmax(1).
        logits = 2 * torch.randn(ROWS, VOCABULARY, dtype=torch.float32) + 0.6 * (torch.rand(VOCABULARY) - 0.5)
        rows = token_rows(attempt(sample, logits.clone(), t))
        if len(rows) == 1 and len(rows[0]) == ROWS:
            rows = [[token] for token in rows[0]]
        if len(rows) != ROWS or {len(row) for row in rows} != {1}:
            hint = f"Expected one token for each of {ROWS} rows of logits."
            raise CannotJudge(hint, rows=len(rows), each=len(rows[0]))
        return logits, _tokens(rows, VOCABULARY)

    return ask


def _of_model(generate: Callable[..., Any], model: Any) -> Ask:
    vocabulary, device = model.get_input_embeddings().num_embeddings, next(model.parameters()).device
    ends = _special(model, "eos")
    special = ends | _special(model, "pad") | _special(model, "bos")  # padding would be masked
    usual = torch.tensor([token for token in range(vocabulary) if token not in special])
    prompts = usual[torch.randint(len(usual), (PROMPTS, 4))].to(device)
    width = prompts.shape[1]

    def completion(tokens: list[int]) -> list[int]:
        for place, token in enumerate(tokens):
            if token in ends:
                return tokens[: place + 1]
        return tokens

    @torch.no_grad()
    def ask(t: float) -> tuple[Tensor, Tensor]:
        rows = token_rows(attempt(generate, prompts.clone(), t))
        if len(rows) != len(prompts):
            raise CannotJudge(f"Expected one row of tokens for each of {len(prompts)} prompts.", rows=len(rows))
        if [row[:width] for row in rows] == prompts.tolist():
            rows = [row[width:] for row in rows]
        completions = [completion(row) for row in rows]
        lengths = torch.tensor([len(tokens) for tokens in completions])
        if not lengths.any():
            raise CannotJudge("No row has a token after its prompt. Likely max_new_tokens is 0.", tokens=0)
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        new = torch.zeros(mask.shape, dtype=torch.long)
        new[mask] = tokens = _tokens(completions, vocabulary)
        logits = model(input_ids=torch.cat([prompts, new.to(device)], 1)[:, :-1]).logits[:, width - 1 :]
        return logits[mask.to(device)][:TOKENS], tokens[:TOKENS].to(device)

    return ask


def _special(model: Any, name: str) -> set[int]:
    ids = getattr(getattr(model, "generation_config", None), f"{name}_token_id", None)
    return {ids} if isinstance(ids, int) else set(ids or ())


def _tokens(rows: list[list[int]], vocabulary: int) -> Tensor:
    """All of them, one after the other."""
    tokens = torch.tensor([token for row in rows for token in row])
    if not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
        hint = f"Expected tokens from 0 to {vocabulary - 1}, as many as there are logits."
        raise CannotJudge(hint, largest=int(tokens.max()))
    return tokens
