"""Put many questions to a judge over HTTP: a few at a time, with patience that ends, and count what became of each.

A reward that did not come is None here and never 0; what to do then is the business of `labkit.advantage`. A judge to
practise on is in `slow_judge`. This file knows no trainer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# And 5xx: the same question may be answered later. Any other refusal is final.
LATER = {408, 425, 429}


@dataclass
class Scores:
    """What became of the questions of one round.

    rewards   a float per question, in the order they were asked; None where none came
    tries     requests sent per question
    why       per question: "" when its reward came, else what the last try met, such as "timeout", "HTTP 500"
              or "malformed"
    seconds   of the round
    """

    rewards: list[float | None]
    tries: list[int]
    why: list[str]
    seconds: float = 0.0

    missing = property(lambda self: sum(reward is None for reward in self.rewards))
    retried = property(lambda self: sum(tries - 1 for tries in self.tries))

    def __str__(self) -> str:
        reasons = Counter(filter(None, self.why)).most_common()
        lost = f" ({', '.join(f'{number} {why}' for why, number in reasons)})" if reasons else ""
        counts = f"{len(self.rewards)} asked, {self.retried} retried, {self.missing} missing"
        return f"{counts}{lost}; {self.seconds:.2f} s"


class Failure(Exception):  # noqa: N818 - one try's, and it stays in here
    """A try that brought no reward: why, whether another may, and how long the judge asks to wait before it."""

    def __init__(self, why: str, again: bool = True, wait: float = 0.0):
        super().__init__(why)
        self.why, self.again, self.wait = why, again, wait


async def score(
    url: str,
    questions: Sequence[Any],
    *,
    workers: int = 8,
    timeout: float = 15.0,
    retries: int = 2,
    backoff: float = 0.5,
) -> Scores:
    """POST each question as JSON to `url`, and return their `Scores`. No question is lost silently, and none raises.

    workers   requests under way at a time
    timeout   seconds that one try may take, from connecting to the last byte
    retries   more tries after a first that failed
    backoff   seconds: a retry waits a random part of this, then of twice this, and so on, on top of what Retry-After
              asks for. It holds no worker while it waits

    The judge answers {"reward": a number}; anything else counts as malformed. No proxy is asked.
    """
    import httpx

    scores = Scores([None] * len(questions), [0] * len(questions), [""] * len(questions))
    slots, began = asyncio.Semaphore(workers), time.perf_counter()
    pool = httpx.Limits(max_connections=None, max_keepalive_connections=workers)

    async def one_try(client: httpx.AsyncClient, number: int) -> None:
        async with slots:
            scores.tries[number] += 1
            try:
                async with asyncio.timeout(timeout):
                    response = await client.post(url, json=questions[number])
            except TimeoutError:
                raise Failure("timeout") from None
            except httpx.RequestError as error:
                raise Failure(type(error).__name__) from error
        scores.rewards[number] = _reward(response)

    async def ask(client: httpx.AsyncClient, number: int) -> None:
        try:
            async for attempt in _retrying(retries, backoff):
                with attempt:
                    await one_try(client, number)
        except Failure as failure:
            scores.why[number] = failure.why

    async with (
        httpx.AsyncClient(limits=pool, timeout=None, trust_env=False) as client,
        asyncio.TaskGroup() as group,
    ):
        for number in range(len(questions)):
            group.create_task(ask(client, number))
    scores.seconds = time.perf_counter() - began
    return scores


def _reward(response: Any) -> float:
    status = response.status_code
    if status != 200:
        wait = _retry_after(response.headers.get("Retry-After", ""))
        raise Failure(f"HTTP {status}", again=status in LATER or status >= 500, wait=wait)
    try:
        reward = response.json()["reward"]
        finite = isinstance(reward, int | float) and math.isfinite(reward)
    except (ValueError, KeyError, TypeError) as error:
        raise Failure("malformed") from error
    if isinstance(reward, bool) or not finite:
        raise Failure("malformed")
    return float(reward)


def _retry_after(header: str) -> float:
    """The seconds that a Retry-After header asks for; 0 when it names none (a date is not read)."""
    try:
        wait = float(header)
    except ValueError:
        return 0.0
    return max(0.0, wait) if math.isfinite(wait) else 0.0


def _retrying(retries: int, backoff: float) -> Any:
    """tenacity's loop over the tries of one question."""
    import tenacity

    jitter = tenacity.wait_random_exponential(multiplier=backoff, max=32 * backoff)

    def pause(state: Any) -> float:
        return state.outcome.exception().wait + jitter(state)

    return tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(retries + 1),
        wait=pause,
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, Failure) and error.again),
        reraise=True,
    )
