"""Write docs/out-of-memory.md: real out-of-memory messages, and what `labkit.memory.owner` makes of each.

    python scripts/out_of_memory.py            print it
    python scripts/out_of_memory.py --write    write it

The cases are figures in notebooks/props/out_of_memory.jsonl; lesson 05 has the same score.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "notebooks"))

from props import out_of_memory as book  # noqa: E402

from labkit.common import write_whole  # noqa: E402

PAGE = ROOT / "docs" / "out-of-memory.md"
SETS = {
    "carried": "met before the rule got its limits (3 % of the card, 60 % of the request, a tenth for others)",
    "fresh": "looked up afterwards, and scored once",
    "last": "looked up when the rule had stood for long, causes written down first, and scored once",
}
HEAD = """# `labkit.memory.owner` on real messages

Made by `python scripts/out_of_memory.py --write` from notebooks/props/out_of_memory.jsonl: out-of-memory messages of
public threads, carried as figures. The figures are the thread's; the message is rendered anew in the words of its
version of PyTorch; the thread stands as the source. No run here was made by the project. Messages that are cut short
before the last figure are left out. A case counts as settled when a maintainer, or a fix that the reporter tried,
established its cause; the causes of the others were inferred from the thread by hand.

One message has three answers: **another owner**, **fragments**, or **tensors** that fill the card ("references, or
simply too big"). Which of a leak, a longer batch and a run too big at once it was, it cannot say:
`owner(message, held)` needs what was allocated before each step, and that no thread here gives step by step. How to
read a message by hand: lesson 05.
"""

WRONG = """In four the thread speaks of size or of its data and the rule of fragments: 5 to 17 % of the card were
unallocated, and in one 23 GiB were reserved on a card of 12. In one the reporter's way out was the setting against
fragments, and the rule speaks of tensors: 25 MiB were unallocated beside 2.35 GiB free. In three, on cards of 4 to 6
GiB, a smaller run was the advice or the way out, and the rule names another owner: over a tenth of the card was not
PyTorch's. What it was, the threads do not say.
"""


def page() -> str:
    """The page as it should stand."""
    cases = book.cases()
    lines = [HEAD, "| cases | read as the thread does | of |", "| --- | ---: | ---: |"]
    for name, words in SETS.items():
        chosen = [case for case in cases if case["set"] == name]
        settled = [case for case in chosen if case["settled"]]
        for kind, part in {f"{name}: {words}": chosen, f"{name}, settled": settled}.items():
            lines.append("| {} | {} | {} |".format(kind, *book.score(part)))
    for form in book.FORMS:
        part = [case for case in cases if case["form"] == form]
        lines.append("| wording of {} | {} | {} |".format(form, *book.score(part)))
    lines += ["", "| thread | wording | asked | total | free | allocated | unallocated | cause there | `owner` says |"]
    lines += ["| --- | --- | ---: | ---: | ---: | ---: | ---: | --- | --- |"]
    lines += [_row(case) for case in cases]
    wrong = [case for case in cases if book.named(case) != case["cause"]]
    lines += ["", f"Read otherwise: {len(wrong)} of {len(cases)}. {WRONG}"]
    return "\n".join(lines)


def _row(case: dict) -> str:
    source, number = case["source"].split("#")
    number = number.split()[0]
    link = f"[{source} {number}](https://github.com/{source}/issues/{number})"
    loose = case.get("unallocated") or f"{case['reserved']} reserved in all"
    cause = case["cause"] + (", settled" if case["settled"] else "")
    said = book.named(case)
    said = said if said == case["cause"] else f"**{said}**"
    sizes = (case["tried"], case["total"], case["free"], case["allocated"], loose)
    return " | ".join(["| " + link, case["form"].removeprefix("torch "), *sizes, cause, said + " |"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    if parser.parse_args().write:
        write_whole(PAGE, page())
    else:
        print(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
