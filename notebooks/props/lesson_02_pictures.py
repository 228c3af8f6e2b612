"""The figure of page 02: what stands in `.grad` of one weight after each line of a loop, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from props.lesson_02 import Batch, Distance
from torch.nn.utils import get_total_norm

from labkit import sandbox
from labkit.display.panels import TONES

FAR, GREY, INK = TONES["far"][0], TONES["grey"][0], "#333333"
OF_ONE, OF_SUM = "#B8B8B8", "#5A5A5A"  # bars: the norm of one objective's gradient, and of the sum

# ------------------------------------------------------------------------------------------------ what is measured


class Look:
    """What stands in `.grad` after each line of a loop: `look(line)` is a frame for `draw_box`.

    All numbers that a loop could change by accident are taken before it begins.
    """

    def __init__(
        self,
        batch: Batch,
        order: str,
        gradients: Mapping[str, Sequence[torch.Tensor]],
        wanted: Sequence[torch.Tensor],
        distance: Distance,
    ):
        self.batch = batch
        self.order = order
        self.wanted = wanted
        self.distance = distance
        self.weight = batch.model.get_input_embeddings().weight
        self.start = self.weight[batch.followed].item()
        self.of_each = {name: batch.of_weight(one) for name, one in gradients.items()}
        self.norms = [get_total_norm(one).item() for one in gradients.values()]
        self.norm_of_sum = get_total_norm(wanted).item()
        self.history: list[float | None] = []

    def __call__(self, line: str) -> dict[str, Any]:
        parameters = list(self.batch.model.parameters())
        written = [one.grad for one in parameters if one.grad is not None]
        self.history.append(self.grad_of_weight())
        frame: dict[str, Any] = {
            "order": self.order,
            "line": line,
            "of each": self.of_each,
            "history": list(self.history),  # of `.grad` of the weight, after each line so far
            "norms": [*self.norms, get_total_norm(written).item(), self.norm_of_sum],
            "distance": None,
            "moved": None,
        }
        if len(self.history) >= 3:  # both are written
            frame["distance"] = self.distance(parameters, self.wanted)
        if line == "step":
            frame["moved"] = self.weight[self.batch.followed].item() - self.start
        return frame

    def grad_of_weight(self) -> float | None:
        if self.weight.grad is None:
            return None
        return self.weight.grad[self.batch.followed].item()


def frames_of(fill: Callable[..., Any], write: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """(order, line) -> what `fill(write)` found there, in a process of its own; what it did not reach is not there."""
    run = sandbox.run(fill, write, timeout=60)
    return {(frame["order"], frame["line"]): frame for frame in run.events}


# --------------------------------------------------------------------------------------------------- what is drawn


def draw_box(axes: Sequence[Any], frame: Mapping[str, Any] | None, label: str) -> None:
    """Left: `.grad` of the weight that is followed, and what was written before. Right: four norms, of all weights.

    label  whose function writes: "=", or the reader's or the solution's
    """
    box, bars = axes
    box.set(xlim=(0, 10), ylim=(0, 4), xticks=[], yticks=[])
    box.spines[:].set_visible(False)
    bars.spines[["top", "right"]].set_visible(False)
    if frame is None:
        box.text(0.2, 2, f"{label}: the loop ended before this line", fontsize=9)
        bars.set(xticks=[], yticks=[])
        return
    colour, name = TONES["fix"][0], label
    if label == "=":
        colour, name = TONES["bug"][0], "with ="
    box.text(0.1, 3.5, name, fontsize=9, weight="bold", color=colour)
    draw_gradients(box, frame)
    draw_grad(box, frame["history"])
    if frame["moved"] is not None:
        text = f"AdamW moves the weight by {frame['moved']:+.5f}"
        box.text(9.7, 0.5, text, fontsize=8, ha="right", va="center")
    draw_norms(bars, frame, colour)


def draw_gradients(box: Any, frame: Mapping[str, Any]) -> None:
    """The gradient of each objective, with an arrow from each that was written, and their sum."""
    for place, (objective, value) in enumerate(frame["of each"].items()):
        height = 2.6 - 0.95 * place
        box.text(0.1, height, f"{objective}'s: {value:+.4f}", fontsize=9, va="center")
        if len(frame["history"]) >= place + 2:  # the first look is after zero_grad
            arrow = {"arrowstyle": "->", "color": GREY}
            box.annotate("", xy=(5.2, 1.95), xytext=(3.6, height), arrowprops=arrow)
    total = sum(frame["of each"].values())
    box.text(0.1, 0.5, f"the sum: {total:+.4f}", fontsize=9, va="center")


def draw_grad(box: Any, history: Sequence[float | None]) -> None:
    """The box with what stands in `.grad`, and above it what the first write left, where that was another value."""
    from matplotlib.patches import Rectangle

    box.add_patch(Rectangle((5.3, 1.1), 4.4, 1.7, fill=False, ec=INK, lw=1.6))
    box.text(7.5, 2.95, ".grad of the weight", fontsize=8, ha="center")
    centred = {"ha": "center", "va": "center"}
    value = history[-1]
    text = "None"
    if value is not None:
        text = f"{value:+.4f}"
    box.text(7.5, 1.6, text, fontsize=12, color=FAR, weight="bold", **centred)
    if len(history) < 3:  # nothing was written twice
        return
    first = history[1]
    if first is not None and first != value:
        box.text(7.5, 2.35, f"was {first:+.4f}", fontsize=8, color=GREY, **centred)


def draw_norms(bars: Any, frame: Mapping[str, Any], colour: str) -> None:
    """Four norms over all weights: of each objective's gradient, of `.grad`, of the sum."""
    names = [f"{objective}'s" for objective in frame["of each"]]
    names += [".grad", "the sum"]
    bars.barh(names, frame["norms"], color=[OF_ONE, OF_ONE, colour, OF_SUM], height=0.66)
    bars.invert_yaxis()
    bars.set(xlim=(0, 2), xticks=[])
    for place, norm in enumerate(frame["norms"]):
        bars.text(min(norm, 1.7) + 0.03, place, f"{norm:.2f}", va="center", fontsize=8)
    title = "norm over all weights"
    if frame["distance"] is not None:
        title += f"; distance of .grad from the sum {frame['distance']:.2f}"
    bars.set_title(title, fontsize=8, loc="left")
    bars.tick_params(labelsize=8)
