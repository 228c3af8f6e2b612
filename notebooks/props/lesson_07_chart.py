"""Page 07's last chart: what is lost to pieces under each setting, by default and with expandable segments in force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labkit.events import Run

from .chart import ExamChart


class LostChart(ExamChart):
    """GiB that are lost to pieces: a row for each setting, an arm without the allocator's setting and one with it."""

    def __init__(self, title: str):
        label = "GiB lost to pieces, simulated, a mark for each seed"
        tones = {"default": "bug", "in force": "fix"}
        self.peaks: dict[str, list[float]] = {}
        super().__init__(
            tones,
            start=0,
            title=title,
            right_edge=1.8,
            value=lambda run: run.events[0],
            label=label,
        )

    def add_lost(
        self, name: str, arms: Mapping[str, Sequence[float]], peaks: Sequence[float]
    ) -> None:
        """A row: arm -> GiB of each seed; and for the table the most that each seed has in tensors."""
        self.peaks[name] = list(peaks)
        self.add(name, {arm: [Run([gib]) for gib in seeds] for arm, seeds in arms.items()})

    def table(self, setting: str = "GiB", decimals: int = 2) -> list[dict[str, str]]:
        """A row for each setting: lost by default, lost in force, and the most in tensors; a number for each seed."""
        rows = []
        for row in super().table(setting, decimals):
            named = {setting: row[setting]}
            for arm in self.tones:
                named[f"lost, {arm}"] = row[arm]
            peaks = self.peaks[row[setting]]
            named["most in tensors"] = " ".join(f"{peak:.{decimals}f}" for peak in peaks)
            rows.append(named)
        return rows

    def lost(self, name: str, arm: str) -> list[float]:
        return [self.value(run) for run in self.runs(name, arm)]
