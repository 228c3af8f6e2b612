"""What is stale, in words: each thing once, with who holds it and the way out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from .holders import holders

RESTART = "restart the kernel and run all"


@dataclass(frozen=True)
class Stale:
    """One thing that is not what the file says.

    module, name   where the file has it, `name` qualified: "losses", "Meter.read"; no name for a whole module
    where          file:line on disk
    what           how the two differ
    holders        who holds what runs: "losses.step" (the module itself), "__main__.meter (an instance)"
    way_out        what to do
    """

    module: str
    name: str
    where: str
    what: str
    holders: tuple[str, ...] = ()
    way_out: str = RESTART

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.name}".rstrip(".")

    def __str__(self) -> str:
        lines = [f"STALE  {self.full_name}  ({self.where}): {self.what}"]
        if self.holders:
            lines.append(f"       held by  {', '.join(self.holders)}")
        return "\n".join([*lines, f"       way out  {self.way_out}"])


@dataclass(frozen=True)
class Loaded:
    """The result. `bool()` is True when nothing is stale and all that was named could be compared.

    stale      what is not what the file says
    functions  how many functions were compared, in how many `modules`
    unread     "module: why" for those that could not be compared
    named      whether modules were named; then an unread one counts
    """

    stale: tuple[Stale, ...]
    functions: int
    modules: int
    unread: tuple[str, ...] = ()
    named: bool = False

    def __bool__(self) -> bool:
        return self.word == "FRESH"

    @property
    def word(self) -> str:
        """FRESH, STALE, or INCONCLUSIVE: something that was named could not be compared."""
        if self.stale:
            return "STALE"
        return "INCONCLUSIVE" if self.named and (self.unread or not self.modules) else "FRESH"

    def __repr__(self) -> str:
        compared = f"{self.functions} functions of " if self.functions else ""
        head = f"{self.word}  {len(self.stale)} stale; {compared}{self.modules} modules compared"
        return "\n".join([head, *map(str, self.stale), *(f"       not compared  {text}" for text in self.unread)])


def with_holders(differences: list[tuple[Stale, Any]]) -> Iterator[Stale]:
    """Each stale thing once, with who holds the old function; None in its place: a value of the module's own."""
    merged: dict[Stale, list[str]] = defaultdict(list)
    for (stale, old), names in zip(differences, holders([old for _, old in differences]), strict=True):
        merged[stale] += [stale.full_name] if old is None else names
    for stale, names in merged.items():
        own = stale.full_name
        others = tuple(dict.fromkeys(n for n in names if n != own))
        way_out = RESTART
        if not stale.name:
            way_out = f"mend the file; then {RESTART}"
        elif others and own in names:
            way_out += f"; importlib.reload would mend {own} and leave the others"
        elif others:
            way_out += "; or make each holder anew, with what the module has now"
        yield replace(stale, holders=(own, *others) if own in names else others, way_out=way_out)
