"""Page 08's pictures: one prompt's next token and its eight answers; and where each rollout stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from props.lesson_08 import written

from labkit.display.panels import TONES
from labkit.grpo import task
from labkit.grpo.advantage import group_advantage

RIGHT, WRONG, GREY = (TONES[name][0] for name in ("one", "far", "grey"))
TONE_OF = {"bug": "bug", "healthy": "healthy", "yours": "fix", "solution": "fix"}
COLOURS = {name: TONES[tone][0] for name, tone in TONE_OF.items()}
LIKELIEST = 5  # tokens that have a bar

# of one temperature: "chances" token -> chance, "texts" the eight answers
Frame = Mapping[str, Any]


# ---------------------------------------------------------------------------------------------------------- one prompt


def draw_answers(axes: Sequence[Any], prompt: str, frame: Frame | None, whose: str) -> None:
    """Left: how likely the next token is. Right: the eight answers, green where right, with their advantages."""
    left, right = axes
    right.set(xlim=(-0.5, 3.5), ylim=(-0.9, 1.5))
    right.axis("off")
    if frame is None:
        left.axis("off")
        right.text(1.5, 0.5, f"{whose}: the run ended before this", ha="center", fontsize=10)
        return
    draw_chances(left, prompt, frame["chances"])
    draw_group(right, prompt, frame["texts"], whose)


def draw_chances(axes: Any, prompt: str, chances: Mapping[str, float]) -> None:
    """A bar for each of the likeliest tokens that can follow the prompt and a 1."""
    tokens = list(chances)[:LIKELIEST]
    heights = list(chances.values())[:LIKELIEST]
    axes.bar(tokens, heights, color=GREY, width=0.7)
    for place, chance in enumerate(heights):
        axes.text(place, chance + 0.03, f"{chance:.3f}", ha="center", fontsize=7.5)
    axes.set(xlim=(-0.6, 4.6), ylim=(0, 1.15), yticks=[])
    axes.set_xlabel(f"next token after {prompt}1, its chance", fontsize=8)
    axes.spines["left"].set_visible(False)


def draw_group(axes: Any, prompt: str, texts: Sequence[str], whose: str) -> None:
    """A box for each answer, four in a line."""
    rewards = task.rewards([prompt] * len(texts), texts)
    advantages = group_advantage(torch.tensor(rewards), len(texts)).tolist()
    words = {"ha": "center", "va": "center", "ma": "center", "fontsize": 9}
    answers = zip(texts, rewards, advantages, strict=True)
    for number, (text, reward, advantage) in enumerate(answers):
        line, column = divmod(number, 4)
        edge = RIGHT if reward else WRONG
        box = {"boxstyle": "round,pad=0.4", "fc": "white", "ec": edge, "lw": 1.8}
        axes.text(column, 1 - line, f"{text}\nA = {written(advantage)}", bbox=box, **words)
    count = f"{whose}: different answers {len(set(texts))}, right {sum(rewards):.0f} of 8"
    axes.text(1.5, -0.85, count, ha="center", fontsize=9, weight="bold", color=COLOURS[whose])


# ------------------------------------------------------------------------------------------------------------ the card

HIGHEST = 4.0  # a rollout above it stands at this height, and its name has the number
LETTER = 1.1  # the width of a letter, in per cent of the groups
LINE = 0.3  # the height of a line of text, in counts by the expected one


@dataclass(frozen=True)
class Name:
    """Where the name of a rollout stands on the card."""

    start: float
    end: float
    height: float

    def covers(self, other: Name) -> bool:
        """Do the two run into each other?"""
        side_by_side = other.end <= self.start or self.end <= other.start
        return not side_by_side and abs(self.height - other.height) < LINE


def card(rows: Mapping[str, Mapping[str, float]]) -> None:
    """Where each rollout stands: across, its groups of copies; upwards, its count by the expected one."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8.6, 3.4), layout="constrained")
    names: list[Name] = []  # those that stand already
    for rollout, row in sorted(rows.items(), key=lambda pair: pair[1]["count"]):
        if row["low"] <= 0:  # the range holds 0: no place up or down
            continue
        expected = (row["low"] + row["high"]) / 2
        ratio = row["count"] / expected
        share = 100 * row["copies"] / row["groups"]
        half_a_range = (row["high"] - row["low"]) / 2 / expected
        axes.errorbar([share], [1], half_a_range, color="#9CCDB6", lw=9, alpha=0.6, zorder=1)
        draw_dot(axes, rollout, share, ratio)
        text = f"{rollout} ({ratio:.1f})" if ratio >= HIGHEST else rollout
        name = free_place(text, share, ratio, names)
        names.append(name)
        draw_name(axes, rollout, text, name, (share, min(ratio, HIGHEST)))
    axes.set(xlim=(-4, 107), ylim=(-0.3, None), xlabel="groups of eight copies, %")
    axes.set_ylabel("count / expected")
    axes.spines[["top", "right"]].set_visible(False)
    title = "Only copied draws and hot ones stand alone; filters hide (green: chance)"
    axes.set_title(title, fontsize=10, loc="left", weight="bold")
    plt.show()


def draw_dot(axes: Any, rollout: str, share: float, ratio: float) -> None:
    look: dict[str, Any] = {"ms": 7}
    if TONE_OF.get(rollout) == "fix":
        # the reader's own is a ring, so that another dot in its place is visible
        look = {"ms": 12, "mfc": "none", "mew": 2}
    colour = COLOURS.get(rollout, GREY)
    axes.plot([share], [min(ratio, HIGHEST)], "o", color=colour, zorder=3, **look)


def free_place(text: str, share: float, ratio: float, names: Sequence[Name]) -> Name:
    """A place beside the dot, at its height or above it, where no other name stands."""
    width = LETTER * len(text)
    start = share + 3
    # left of its dot where there is room for it; what drew nothing stands on the other side
    if share > 60 and ratio > 0:
        start = share - 3 - width
    name = Name(start, start + width, min(ratio, HIGHEST))
    while any(name.covers(other) for other in names):
        name = Name(name.start, name.end, name.height + 0.1)
    return name


def draw_name(axes: Any, rollout: str, text: str, name: Name, dot: tuple[float, float]) -> None:
    """The name in its place, and a line from it to its dot."""
    share, _ = dot
    words: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": 9}
    place = (name.end, name.height)
    if name.start > share:
        words["ha"] = "left"
        place = (name.start, name.height)
    words["color"] = COLOURS.get(rollout, "black")
    line = {"arrowstyle": "-", "color": COLOURS.get(rollout, GREY), "lw": 0.8}
    line |= {"shrinkA": 0, "shrinkB": 4}
    axes.annotate(text, dot, place, arrowprops=line, **words)
