"""Ask a judge, a reward model behind HTTP that is slow and fails, and never mistake its silence for a reward.

    await score(url, questions, workers=8, timeout=15)   `Scores`: a reward or None for each question, and the counts
    serve(seed=0, scale=0.02)                            a judge to practise on, in a process of its own
    mark(prompt, completion)                             what that judge thinks of a completion, when it answers
    fate(seed, name, number, length)                     when, and whether, it will answer a try: without asking it

    client    `score`: bounded concurrency, a timeout per try, a deadline per round, retries that honour Retry-After
    process   `serve`: starts the judge on a free port of the loopback, and ends it
    server    what runs in the judge's process

It knows no trainer. A reward that did not come is None here and never 0; what to do then is the business of
`labkit.advantage`.
"""

from .client import Scores, score
from .process import Served, serve
from .server import fate, mark

__all__ = ["Scores", "Served", "fate", "mark", "score", "serve"]
