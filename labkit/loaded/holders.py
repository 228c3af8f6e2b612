"""Who holds an object: the names that lead to it, from a module or from a running call.

The search goes from an object to what refers to it, and on, until it reaches a module's names. What only C code or a
running thread holds has no name that it could find.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .sameness import SUSPENDED

LEVELS, WIDTH = 10, 60  # of the search for one object: references away from it, and objects at each
MANY = 100  # objects whose holders are searched at once
NOTES: dict[Any, str] = {
    types.CellType: " (a closure)",
    types.FunctionType: " (a function that refers to it)",
    types.MethodType: " (a bound method)",
    functools.partial: " (a partial)",
    type: " (a class derived from it)",
    tuple(SUSPENDED): " (a suspended call)",
}


@dataclass
class Link:
    """An object on the way from the one asked about to a name."""

    thing: Any
    number: int  # of the object asked about
    note: str  # what the name leads to: " (an instance)"
    path: str = ""  # behind the name: ".probe", "[0]"
    key: Any = None  # of the way, where `thing` is a dict

    def up(self, holder: Any) -> Link:
        """The link from an object that refers to this one's."""
        held, above = self.thing, functools.partial(Link, holder, self.number)
        if isinstance(held, dict) and (isinstance(holder, type) or getattr(holder, "__dict__", None) is held):
            return above(self.note, f".{self.key}" * (self.key != "__wrapped__") + self.path)
        path = f"[{self.key!r}]{self.path}" if isinstance(held, dict) else self.path
        if isinstance(holder, dict):
            return above(self.note, path, next((k for k, v in holder.items() if v is held), None))
        if isinstance(holder, (list, tuple)):
            return above(self.note, f"[{next(i for i, v in enumerate(holder) if v is held)}]{path}")
        if isinstance(holder, (property, staticmethod, classmethod)):
            return above(self.note, path)
        if type(holder) is held:
            return above(" (an instance)")
        if note := next((note for kind, note in NOTES.items() if isinstance(holder, kind)), ""):
            return above(self.note or note)
        name = next((k for k, v in getattr(holder, "__dict__", {}).items() if v is held), "")
        attribute = f".{name}" * (name != "__wrapped__")
        return above(self.note, attribute + path) if name else above(f" (in a {type(holder).__name__})")

    def text(self, module: str) -> str:
        if isinstance(self.thing, types.FrameType):
            return f"a running call of {self.thing.f_code.co_qualname}{self.note}"
        return f"{module}.{self.key}{self.path}{self.note}"


def holders(things: Sequence[Any]) -> list[list[str]]:
    """For each object, the names that lead to it, shortest first; None has none."""
    modules = [(name, m) for name, m in list(sys.modules.items()) if isinstance(m, types.ModuleType)]
    roots = {id(vars(module)): name for name, module in reversed(modules)}  # of two names the older one
    names: list[list[str]] = [[] for _ in things]
    level = [
        Link(thing, number, NOTES[tuple(SUSPENDED)] if type(thing) in SUSPENDED else "")
        for number, thing in enumerate(things)
        if thing is not None
    ]
    seen = {(id(link.thing), link.number) for link in level}
    for _ in range(LEVELS):
        now, level, width = level, [], Counter[int]()
        for link, holder in _links(now, things):
            above = link.up(holder)
            if id(holder) in roots or isinstance(holder, types.FrameType):
                names[link.number].append(above.text(roots.get(id(holder), "")))
            elif (id(holder), link.number) not in seen and width[link.number] < WIDTH:
                seen.add((id(holder), link.number))
                width[link.number] += 1
                level.append(above)
    return [_worth_telling(found) for found in names]


def _links(level: list[Link], asked: Sequence[Any]) -> list[tuple[Link, Any]]:
    """Each link, with each object that refers to its object; what this search itself holds is left out."""
    wanted = {id(link.thing): link.thing for link in level}
    mine = {id(asked), id(wanted), *(id(vars(link)) for link in level)}
    links: dict[int, list[Link]] = defaultdict(list)
    for link in level:
        links[id(link.thing)].append(link)
    mine |= {id(links), *map(id, links.values())}
    found = []
    for holder in _referrers(wanted):
        ours = isinstance(holder, types.FrameType) and holder.f_globals.get("__package__") == __package__
        if ours or id(holder) in mine or isinstance(holder, (Link, types.ModuleType)):
            continue
        reached = {id(referent) for referent in gc.get_referents(holder)} & links.keys()
        found += [(link, holder) for thing in reached for link in links[thing]]
    return found


def _referrers(wanted: dict[int, Any]) -> list[Any]:
    """What refers to these objects. The collector's own search takes time for each; for many, one pass is faster."""
    if len(wanted) <= MANY:
        return gc.get_referrers(*wanted.values()) if wanted else []
    ids = set(wanted)
    return [holder for holder in gc.get_objects() if not ids.isdisjoint(map(id, gc.get_referents(holder)))]


def _worth_telling(names: list[str]) -> list[str]:
    """Without what a notebook keeps of its last outputs, unless nothing else holds the object."""
    found = sorted(dict.fromkeys(names), key=lambda name: (len(name), name))
    return [name for name in found if not name.startswith(("__main__._", "__main__.Out["))] or found
