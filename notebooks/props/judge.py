"""Put many questions to a judge over HTTP: a few at a time, with patience that ends, and count what became of each.

A reward that did not come is None here and never 0; what to do then is the business of `labkit.advantage`. A judge to
practise on is in `slow_judge`. This file knows no trainer.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

LATER = {
    408,
    425,
    429,
}  # and 5xx: the same question may be answered later; any other refusal is final
LOCAL = {"localhost", "127.0.0.1", "::1"}


@dataclass
class Scores:
    """What became of the questions of one round.

    rewards   a float per question, in the order they were asked; None where none came
    tries     requests sent per question
    why       per question: "" when its reward came, else what the last try met, such as "timeout", "HTTP 500"
              or "malformed"; "deadline" when the round was over first
    seconds   of the round

    asked = answered + missing, and tried = asked + retried - untried.
    """

    rewards: list[float | None]
    tries: list[int]
    why: list[str]
    seconds: float = 0.0

    asked = property(lambda self: len(self.rewards))
    missing = property(lambda self: sum(reward is None for reward in self.rewards))
    answered = property(lambda self: self.asked - self.missing)
    tried = property(lambda self: sum(self.tries))
    untried = property(lambda self: self.tries.count(0))
    retried = property(lambda self: sum(max(0, tries - 1) for tries in self.tries))

    def __str__(self) -> str:
        reasons = Counter(filter(None, self.why)).most_common()
        lost = f" ({', '.join(f'{number} {why}' for why, number in reasons)})" if reasons else ""
        counts = f"{self.asked} asked, {self.answered} answered, {self.retried} retried, {self.missing} missing"
        return f"{counts}{lost}; {self.tried} tries in {self.seconds:.2f} s"


class Failure(Exception):  # noqa: N818 - one try's, and it stays in here
    """A try that brought no reward: why, whether another may, and how long the judge asks to wait before it."""

    def __init__(self, why: str, again: bool = True, wait: float = 0.0):
        super().__init__(why)
        self.why, self.again, self.wait = why, again, wait


def reward_of(answer: Any) -> float:
    """The number under "reward" of a judge's JSON. Raises: ValueError, KeyError or TypeError when there is none."""
    reward = answer["reward"]
    if (
        isinstance(reward, bool)
        or not isinstance(reward, (int, float))
        or not math.isfinite(reward)
    ):
        raise ValueError(f"reward: expected a finite number, got {reward!r}")
    return float(reward)


async def score(
    url: str,
    questions: Sequence[Any],
    *,
    workers: int = 8,
    timeout: float = 15.0,
    retries: int = 2,
    deadline: float = 300.0,
    backoff: float = 0.5,
    size: Callable[[Any], float] = lambda question: len(json.dumps(question)),
    read: Callable[[Any], float] = reward_of,
    headers: Mapping[str, str] | None = None,
) -> Scores:
    """POST each question as JSON to `url`, and return their `Scores`. No question is lost silently, and none raises.

    workers   requests under way at a time
    timeout   seconds that one try may take, from connecting to the last byte
    retries   more tries after a first that failed
    deadline  seconds for the whole round: what has not come by then is missing
    backoff   seconds: a retry waits a random part of this, then of twice this, and so on, on top of what Retry-After
              asks for. It holds no worker while it waits
    size      the largest are asked first: a slow one that starts last is what all wait for
    read      the judge's JSON -> a reward; what it raises, or a number that is not finite, counts as malformed
    headers   sent with each request, such as {"Authorization": ...}

    Raises: ValueError names a setting that cannot be.
    """
    import httpx

    _validate(workers=workers, timeout=timeout, retries=retries, deadline=deadline, backoff=backoff)
    scores = Scores([None] * len(questions), [0] * len(questions), ["deadline"] * len(questions))
    slots, began = asyncio.Semaphore(workers), time.perf_counter()
    pool = httpx.Limits(max_connections=None, max_keepalive_connections=workers)
    options: dict[str, Any] = {"limits": pool, "timeout": None, "headers": headers}
    options["trust_env"] = (
        urlsplit(url).hostname not in LOCAL
    )  # no proxy on the way to this machine

    async def one_try(client: httpx.AsyncClient, number: int) -> None:
        async with slots:
            scores.tries[number] += 1
            with _failures(httpx.RequestError):
                async with asyncio.timeout(timeout):
                    response = await client.post(url, json=questions[number])
                scores.rewards[number] = _reward(response, read)
                scores.why[number] = ""

    async def ask(client: httpx.AsyncClient, number: int) -> None:
        try:
            async for attempt in _retrying(retries, backoff):
                with attempt:
                    await one_try(client, number)
        except Failure as failure:
            scores.why[number] = failure.why

    order = sorted(range(len(questions)), key=lambda number: -size(questions[number]))
    with contextlib.suppress(TimeoutError):
        async with (
            httpx.AsyncClient(**options) as client,
            asyncio.timeout(deadline),
            asyncio.TaskGroup() as group,
        ):
            for number in order:
                group.create_task(ask(client, number))
    scores.seconds = time.perf_counter() - began
    return scores


@contextlib.contextmanager
def _failures(transport: type[Exception]):
    """Time that ran out and a broken connection as failures of this try."""
    try:
        yield
    except TimeoutError:
        raise Failure("timeout") from None
    except transport as error:
        raise Failure(type(error).__name__) from error


def _reward(response: Any, read: Callable[[Any], float]) -> float:
    status = response.status_code
    if status != 200:
        wait = _retry_after(response.headers.get("Retry-After", ""))
        raise Failure(f"HTTP {status}", again=status in LATER or status >= 500, wait=wait)
    try:
        reward = float(read(response.json()))
    except Exception as error:
        raise Failure("malformed") from error
    if not math.isfinite(reward):
        raise Failure("malformed")
    return reward


def _retry_after(header: str) -> float:
    """Seconds that a Retry-After header asks for: a number, or a date (RFC 9110, 10.2.3); 0 when it says neither."""
    try:
        wait = float(header)
    except ValueError:
        parsed = email.utils.parsedate_tz(header)
        wait = email.utils.mktime_tz(parsed) - time.time() if parsed else 0.0
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


def _validate(**settings: float) -> None:
    least = {"workers": 1, "retries": 0}
    for name, value in settings.items():
        whole = name in least
        if not (value >= least[name] and value == int(value) if whole else value > 0):
            expected = f"a whole number, at least {least[name]}" if whole else "seconds, above 0"
            raise ValueError(f"score: {name} = {value}: must be {expected}")
