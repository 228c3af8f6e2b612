"""Lesson 10's pictures: the tokens of two cards as boxes, and the chart of what faults cost."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from props.arms import last_exam

from labkit.common import number
from labkit.display import notebook
from labkit.display.panels import TONES
from labkit.display.sheet import png
from labkit.events import Run

GREY = TONES["grey"][0]
HIGHEST = 0.56
EDGE = 0.125  # of the chart; what lies outside is drawn hollow at its edge


Cards = Mapping[tuple[str, int], Sequence[Sequence[float]]]


def draw_cards(axes: Any, *, tokens_on_card_0: int, rows: str, cards: Cards, tone: str) -> None:
    """Two cards and their tokens: a bar a token, as high as its weight in the step that both make.

    rows   "own", or "the same": then both hold the same tokens, and the numbers in the bars are equal
    cards  (rows, tokens on card 0) -> the weights of card 0's tokens, and of card 1's; a position is missing where
           the run ended by an error
    """
    found = cards.get((rows, tokens_on_card_0))
    same = rows == "the same"
    edge = (
        max(10.6, 2 * tokens_on_card_0 + 3.2) if same else 10.6
    )  # right of the bars, with room for words
    axes.set(ylim=(0, HIGHEST), xlim=(-0.8, edge), xticks=[])
    axes.set_ylabel("weight in the step", fontsize=8)
    if found is None:
        axes.text(0, 0.3, "ended by an error", fontsize=9)
        return
    right = 1 / tokens_on_card_0 if same else 1 / 8
    axes.axhline(right, color=TONES["healthy"][0], lw=1.2, dashes=(7, 2, 1.5, 2), zorder=0)
    # where the line has its name: inside the axes, also if the line is above them
    line = min(right, HIGHEST - 0.13)
    named = f"one process,\neach token once: {fraction(right)}"
    if not same:
        named = f"one process,\nthe eight tokens: {fraction(right)}"
    else:
        both = fraction(found[0][0] + found[1][0])
        beside = f"a token's two bars\ntogether: {both}"
        axes.text(edge, line - 0.02, beside, ha="right", va="top", fontsize=7.5)
    axes.text(edge, line + 0.012, named, ha="right", fontsize=7.5, color=TONES["healthy"][0])
    place, count = 0.0, 0
    for card, weights in enumerate(found):
        middle = place + (len(weights) - 1) / 2
        axes.text(middle, -0.075, f"card {card}", ha="center", fontsize=8)
        if same:
            count = 0
        for weight in weights:
            count += 1
            shown = min(weight, HIGHEST) if weight == weight else 0.0
            axes.bar(place, shown, 0.86, color=TONES[tone][0])
            axes.text(place, 0.012, count, ha="center", fontsize=8, color="white", weight="bold")
            over = right if right - 0.06 < shown < right else shown  # not across the line
            axes.text(place, over + 0.01, fraction(weight), ha="center", fontsize=7)
            place += 1
        place += 0.7


def fraction(weight: float) -> str:
    """1/12 where it is a twelfth to rounding; else the number."""
    if weight != weight or weight <= 0:
        return number(weight)
    near = round(1 / weight)
    return f"1/{near}" if near > 1 and abs(weight * near - 1) < 1e-5 else number(weight)


class DifferenceChart:
    """Exams at the end, minus those of the runs without the fault: a row for each fault, a dot for each seed.

    Drawn anew in its place as rows come in.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.rows: list[dict[str, Any]] = []
        self._slot = notebook.Slot("chart of what the faults cost")

    def add(
        self,
        name: str,
        arm: Sequence[Run],
        right: Sequence[Run],
        tone: str = "bug",
        family: str = "add",
    ) -> None:
        """A row: the runs with the fault, and those without it, a seed each."""
        ends = [last_exam(run, family) for run in arm]
        right_ends = [last_exam(run, family) for run in right]
        differences = [a - b for a, b in zip(ends, right_ends, strict=True)]
        row = {"name": name, "tone": tone, "ends": ends, "right": right_ends}
        self.rows.append(row | {"differences": differences, "weights": weights_of(arm)})
        if len(self.rows) == 1:
            self._slot.show(self._picture())
        else:
            self._slot.put(self._picture())

    def differences(self, name: str) -> list[float]:
        """One row's differences, a seed each."""
        return next(row["differences"] for row in self.rows if row["name"] == name)

    def mean(self, name: str) -> float:
        """The mean of a row."""
        values = self.differences(name)
        return sum(values) / len(values)

    def table(self) -> list[dict[str, str]]:
        """The same as rows of numbers, for `labkit.table`."""
        table = []
        for row in self.rows:
            cells = {"": row["name"], "weights": row["weights"]}
            cells["exam"] = " ".join(f"{end:.3f}" for end in row["ends"])
            cells["without"] = " ".join(f"{end:.3f}" for end in row["right"])
            cells["difference"] = " ".join(f"{value:+.3f}" for value in row["differences"])
            table.append(cells | {"mean": f"{self.mean(row['name']):+.3f}"})
        return table

    def _picture(self) -> dict[str, str]:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(
            figsize=(8.6, 0.3 * len(self.rows) + 0.9), layout="constrained", dpi=125
        )
        axes.axvline(0, color=GREY, lw=1)
        for at, row in enumerate(reversed(self.rows)):
            colour, values = TONES[row["tone"]][0], row["differences"]
            for value in values:
                inside = max(-EDGE, min(EDGE, value))  # a run that died lies far outside
                filling = "full" if inside == value else "none"
                axes.plot(inside, at, "o", color=colour, ms=5.5, alpha=0.8, fillstyle=filling)
            mean = max(-EDGE, min(EDGE, sum(values) / len(values)))
            axes.plot([mean, mean], [at - 0.3, at + 0.3], color=colour, lw=2)
        names = [row["name"] for row in reversed(self.rows)]
        axes.set(yticks=range(len(names)), yticklabels=names, ylim=(-0.6, len(names) - 0.4))
        axes.set_xlim(-EDGE - 0.005, EDGE + 0.005)
        axes.tick_params(labelsize=8)
        axes.set_xlabel(
            "exam at the end, minus that without the fault (a dot a seed, a bar the mean)",
            fontsize=8,
        )
        axes.spines[["top", "right"]].set_visible(False)
        figure.suptitle(self.title, fontsize=9.5, x=0.01, ha="left", weight="bold")
        picture = {"image/png": base64.b64encode(png(figure)).decode()}
        plt.close(figure)
        return picture


def weights_of(runs: Sequence[Run]) -> str:
    """The smallest and the largest weight that tokens of a process had in a round, by what they should have."""
    weights = []
    for run in runs:
        for step in run.steps:
            tokens = [step["tokens_0"], step["tokens_1"]]
            weights += [sum(tokens) / (2 * own) for own in tokens if own]
    return f"{min(weights):.2f} to {max(weights):.2f}" if weights else ""


def weights_by_position(pair: Sequence[Run]) -> dict[tuple[str, int], list[list[float]]]:
    """(rows, tokens on card 0) -> the weights of card 0's tokens and of card 1's, of a pair that was weighed."""
    cards: dict[tuple[str, int], list[list[float]]] = {}
    for run in pair:
        for event in run.events:
            cards.setdefault((event["rows"], event["tokens"]), []).append(event["weights"])
    return {position: both for position, both in cards.items() if len(both) == 2}


def differences_of(pair: Sequence[Run], dealt: Iterable[str]) -> dict[str, float]:
    """How rows were dealt -> how far the pair's gradient is from that of one process; inf where it died or is NaN."""
    found = dict.fromkeys(dealt, inf)
    for event in pair[0].events:
        difference = event["difference"]
        found[event["dealt"]] = difference if difference == difference else inf
    return found
