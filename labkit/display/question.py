"""Predict first, then run: a question with options, answered in the page itself.

No widget: the question is HTML with a few lines of script, so that it works while the kernel is busy, in a
page that was saved and opened again, and in the built site. The browser keeps the answer, and tells the server of a
learner's copy, which notes it (`labkit.progress`). Where no script
runs, as on GitHub, the options stand there and the answer unfolds.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

from . import notebook
from .notebook import folded

LETTERS = "ABCDEF"


def predict(question: str, options: Sequence[str], answer: int, why: str, wrong: Sequence[str] = ()) -> None:
    """Ask a question whose choice is judged in the browser, also while the kernel is busy.

    question   may use `code` and **bold**, as `options`, `why` and `wrong`
    options    two to six different answers
    answer     the place of the right one, counted from 0
    why        shown with the right choice
    wrong      a sentence for each wrong option, in their order: what would have to be so for it to be right

    Raises: ValueError where `answer` or `wrong` do not fit the options.
    """
    question, why = " ".join(question.split()), " ".join(why.split())
    if not 0 <= answer < len(options) <= len(LETTERS):
        raise ValueError(f"predict: answer {answer} of {len(options)} options; count from 0, and give two to six")
    if wrong and len(wrong) != len(options) - 1:
        raise ValueError(f"predict: {len(wrong)} sentences for {len(options) - 1} wrong options; give one for each")
    reasons = [" ".join(reason.split()) for reason in wrong]
    if reasons:
        reasons.insert(answer, why)

    plain, markdown = f"Predict first: {question}", f"**Predict first.** {question}\n"
    static = f"<p><b>Predict first.</b> {_html(question)}</p><ol type='A'>"
    for letter, option in zip(LETTERS, options, strict=False):
        plain += f"\n  {letter}. {option}"
        markdown += f"\n- **{letter}.** {option}"
        static += f"<li>{_html(option)}</li>"
    unfolded, others = f"<b>{LETTERS[answer]}.</b> {_html(why)}", f"**{LETTERS[answer]}.** {options[answer]}\n\n{why}"
    for place, reason in enumerate(reasons):
        if place != answer:
            unfolded += f"<br><b>{LETTERS[place]}.</b> {_html(reason)}"
            others += f"\n\n**{LETTERS[place]}.** {reason}"
    static += f"</ol><details><summary>Answer</summary><p>{unfolded}</p></details>"
    markdown += "\n\n" + folded("Answer", others)
    spec: dict[str, Any] = {
        "question": question,
        "options": list(options),
        "answer": answer,
        "why": why,
        "reasons": reasons,
    }
    if told := notebook.told(question):
        spec["told"] = told
    notebook.show_page("question", static, spec, markdown, plain)


def _html(text: str) -> str:
    """`code` and **bold** as HTML; everything else means itself."""
    escaped = html.escape(text, quote=False)
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", escaped)
