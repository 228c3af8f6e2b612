"""What was found, in words: each stale thing once, with who holds it and the way out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .alive import REPLACED, Found
from .holders import holders
from .places import old_bytecode

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

    def __str__(self) -> str:
        held = [f"       held by  {', '.join(self.holders)}"] if self.holders else []
        first = f"STALE  {self.module}{'.' * bool(self.name)}{self.name}  ({self.where}): {self.what}"
        return "\n".join([first, *held, f"       way out  {self.way_out}"])


@dataclass(frozen=True)
class Loaded:
    """What was found. `bool()` is True when nothing is stale and all that was named could be compared.

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
        unjudged = self.named and (self.unread or not self.modules)
        return "STALE" if self.stale else "INCONCLUSIVE" if unjudged else "FRESH"

    def __repr__(self) -> str:
        compared = f"{self.functions} functions of " * bool(self.functions)
        head = f"{self.word}  {len(self.stale)} stale; {compared}{self.modules} modules compared"
        return "\n".join([head, *map(str, self.stale), *(f"       not compared  {text}" for text in self.unread)])


def described(stale: list[Found], paths: Mapping[str, str]) -> Iterator[Stale]:
    """Each stale thing once, with its holders. `paths` are the files of the loaded modules."""
    merged: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for found, names in zip(stale, holders([f.old for f in stale]), strict=True):
        own = f"{found.module}.{found.name}".rstrip(".")
        merged[found.module, found.name, found.where, found.what] += [own] if found.old is None else names
    for (module, name, where, what), names in merged.items():
        own = f"{module}.{name}".rstrip(".")
        others = tuple(dict.fromkeys(n for n in names if n != own))
        member = any(m == module and n.startswith(f"{name}.") for m, n, *_ in merged)
        if what == REPLACED and (member or not others):
            continue  # what is old in it is named already, or nobody uses it
        way_out = RESTART
        if not name:
            way_out = f"mend the file; then {RESTART}"
        elif bytecode := old_bytecode(module, paths[module]):
            way_out = f"delete {bytecode}: an import takes it for the file's; then {RESTART}"
        elif others and own in names:
            way_out += f"; importlib.reload would mend {own} and leave the others"
        elif others:
            way_out += "; or make each holder anew, with what the module has now"
        yield Stale(module, name, where, what, (*[own] * (own in names), *others), way_out)
