"""The chart of a page's table: a row for each setting, a mark for each seed's exam, drawn anew as rows come in.

Shared by the pages that ask *does it concern me?*. This file runs nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence

from props.arms import last_exam

from labkit.display import notebook
from labkit.display.panels import TONES
from labkit.display.sheet import png
from labkit.events import Run

MARKERS = ("o", "s", "^", "D", "v")
BETWEEN = 0.22  # the height of an arm's marks above the next one's, in rows


class ExamChart:
    """The last exams of several arms under several settings.

    tones  arm -> its colour's name in `labkit.display.panels.TONES`; the legend has this order
    start  the exam before training, drawn as a grey line
    title  the finding
    value  what is drawn of a run, where it is not its last exam; `label` names it
    """

    def __init__(
        self,
        tones: Mapping[str, str],
        *,
        start: float,
        title: str,
        right_edge: float = 0.8,
        value: Callable[[Run], float] = last_exam,
        label: str = "exam at the end, a mark for each seed (grey line: before training)",
    ):
        self.tones, self.start, self.title, self.right_edge = dict(tones), start, title, right_edge
        self.value, self.label = value, label
        self.rows: list[tuple[str, dict[str, list[Run]]]] = []
        self._slot = notebook.Slot("chart of the last exams")

    def add(self, name: str, arms: Mapping[str, Sequence[Run]]) -> None:
        """A row: arm -> its runs, one for each seed. The picture is drawn anew in its place."""
        unknown = [arm for arm in arms if arm not in self.tones]
        if unknown:
            raise ValueError(f"arms {unknown}: expected some of {', '.join(self.tones)}")
        self.rows.append((name, {arm: list(runs) for arm, runs in arms.items()}))
        picture = self._picture()
        if len(self.rows) == 1:
            self._slot.show(picture)
        else:
            self._slot.put(picture)

    def table(self, setting: str = "setting", decimals: int = 2) -> list[dict[str, str]]:
        """The same as rows of numbers, for `labkit.table`."""
        table = []
        for name, arms in self.rows:
            row = {setting: name}
            for arm in self.tones:
                row[arm] = " ".join(f"{self.value(run):.{decimals}f}" for run in arms.get(arm, []))
            table.append(row)
        return table

    def runs(self, name: str, arm: str) -> list[Run]:
        """The runs of one arm in one row."""
        return dict(self.rows)[name][arm]

    def _picture(self) -> dict[str, str]:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(
            figsize=(8.6, 0.36 * len(self.rows) + 1.3), layout="constrained", dpi=125
        )
        markers = dict(zip(self.tones, MARKERS, strict=False))
        died = False
        for at, (_, arms) in enumerate(reversed(self.rows)):
            for place, (arm, runs) in enumerate(arms.items()):
                # one above the other, so that their middle is the row's label
                height = at + BETWEEN * ((len(arms) - 1) / 2 - place)
                drawn = {"color": TONES[self.tones[arm]][0], "ms": 5.5, "alpha": 0.85, "ls": ""}
                axes.plot([], [], markers[arm], label=arm, **drawn)  # the legend's mark is filled
                for run in runs:
                    filling = "full" if run.outcome else "none"
                    axes.plot(self.value(run), height, markers[arm], fillstyle=filling, **drawn)
                    died = died or not run.outcome
        axes.axvline(self.start, color=TONES["grey"][0], lw=1)
        names = [name for name, _ in reversed(self.rows)]
        axes.set(yticks=range(len(names)), yticklabels=names, xlim=(-0.03, self.right_edge))
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.set_xlabel(self.label + ("; hollow: the run died" if died else ""))
        handles, labels = axes.get_legend_handles_labels()
        by_label = dict(zip(labels, handles, strict=True))
        order = [arm for arm in self.tones if arm in by_label]
        axes.legend(
            [by_label[arm] for arm in order],
            order,
            frameon=False,
            fontsize=8,
            ncols=4,
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
        )
        axes.spines[["top", "right"]].set_visible(False)
        figure.suptitle(self.title, fontsize=10, x=0.01, ha="left", weight="bold")
        picture = {"image/png": base64.b64encode(png(figure)).decode()}
        plt.close(figure)
        return picture
