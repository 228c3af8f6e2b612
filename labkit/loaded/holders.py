"""Who holds an object: the names of modules that lead to it.

The search goes from an object to what refers to it, and on, until it reaches a module's names. What only C code or a
running call holds has no name that it could find.
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

LEVELS, WIDTH = 10, 60  # of the search for one object: references away from it, and objects at each
MANY = 100  # objects whose holders are searched at once
NOTES: dict[type, str] = {
    types.CellType: " (a closure)",
    types.FunctionType: " (a function that refers to it)",
    types.MethodType: " (a bound method)",
    functools.partial: " (a partial)",
    type: " (a class derived from it)",
}


@dataclass
class Link:
    """An object on the way from the one asked about to a name."""

    thing: Any
    number: int  # of the object asked about
    note: str = ""  # what the name leads to: " (an instance)"
    path: str = ""  # behind the name: ".probe", "[0]"
    key: Any = None  # of the way, where `thing` is a dict

    def up(self, holder: Any) -> Link:
        """The link from an object that refers to this one's."""
        held, path = self.thing, self.path
        if isinstance(held, dict):
            if isinstance(holder, type) or getattr(holder, "__dict__", None) is held:
                return Link(holder, self.number, self.note, _attribute(self.key) + path)
            path = f"[{self.key!r}]{path}"
        if isinstance(holder, dict):
            return Link(holder, self.number, self.note, path, _key_of(held, holder))
        if isinstance(holder, (list, tuple)):
            index = next(i for i, value in enumerate(holder) if value is held)
            return Link(holder, self.number, self.note, f"[{index}]{path}")
        if isinstance(holder, (property, staticmethod, classmethod)):
            return Link(holder, self.number, self.note, path)
        if type(holder) is held:
            return Link(holder, self.number, " (an instance)")
        for kind, note in NOTES.items():
            if isinstance(holder, kind):
                return Link(holder, self.number, self.note or note)
        if name := _key_of(held, getattr(holder, "__dict__", {})):
            return Link(holder, self.number, self.note, _attribute(name) + path)
        return Link(holder, self.number, f" (in a {type(holder).__name__})")


def _key_of(value: Any, space: dict[Any, Any]) -> Any:
    return next((key for key, other in space.items() if other is value), None)


def _attribute(name: Any) -> str:
    return "" if name == "__wrapped__" else f".{name}"  # a decorated function goes by the decorator's name


def holders(things: Sequence[Any]) -> list[list[str]]:
    """For each object, the names that lead to it, shortest first; None has none."""
    modules = [(name, m) for name, m in list(sys.modules.items()) if isinstance(m, types.ModuleType)]
    roots = {id(vars(module)): name for name, module in reversed(modules)}  # of two names the older one
    names: list[list[str]] = [[] for _ in things]
    level = [Link(thing, number) for number, thing in enumerate(things) if thing is not None]
    visited = {(id(link.thing), link.number) for link in level}
    for _ in range(LEVELS):
        now, level, width = level, [], Counter[int]()
        for link, holder in _links(now, things):
            above = link.up(holder)
            if id(holder) in roots:
                names[link.number].append(f"{roots[id(holder)]}.{above.key}{above.path}{above.note}")
            elif (id(holder), link.number) not in visited and width[link.number] < WIDTH:
                visited.add((id(holder), link.number))
                width[link.number] += 1
                level.append(above)
    return [sorted(set(one), key=lambda name: (len(name), name)) for one in names]


def _links(level: list[Link], things: Sequence[Any]) -> list[tuple[Link, Any]]:
    """Each link, with each object that refers to its object; what this search itself holds is left out."""
    wanted = {id(link.thing): link.thing for link in level}
    links: dict[int, list[Link]] = defaultdict(list)
    for link in level:
        links[id(link.thing)].append(link)
    mine = {id(things), id(wanted), id(links), *map(id, links.values()), *(id(vars(link)) for link in level)}
    pairs = []
    for holder in _referrers(wanted):
        if id(holder) in mine or isinstance(holder, (Link, types.ModuleType, types.FrameType)):
            continue
        for referent in {id(thing) for thing in gc.get_referents(holder)} & links.keys():
            pairs += [(link, holder) for link in links[referent]]
    return pairs


def _referrers(wanted: dict[int, Any]) -> list[Any]:
    """What refers to these objects. The collector's own search takes time for each; for many, one pass is faster."""
    if len(wanted) <= MANY:
        return gc.get_referrers(*wanted.values()) if wanted else []
    ids = set(wanted)
    return [holder for holder in gc.get_objects() if not ids.isdisjoint(map(id, gc.get_referents(holder)))]
