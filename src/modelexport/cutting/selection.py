"""What is to be cut out: module calls, or nodes that a query found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from modelexport.errors import UnknownName, UserError
from modelexport.record.hierarchy import ROOT, Hierarchy, ModuleCall
from modelexport.record.provenance import NodeEntry, Provenance, is_within


@dataclass(frozen=True)
class Selection:
    """
    asked   as it was asked for
    calls   what is cut out with all that ran inside; for a query, the calls that own its nodes
    root    the innermost call that encloses them, or the container that was asked for: the root of what is cut out
    nodes   keys of the nodes that a query found; None where whole calls are meant
    notes   what whoever asked should know
    """

    asked: tuple[str, ...]
    hierarchy: Hierarchy
    calls: tuple[ModuleCall, ...]
    root: ModuleCall
    nodes: frozenset[str] | None = None
    notes: tuple[str, ...] = ()

    @cached_property
    def _calls(self) -> frozenset[ModuleCall]:
        return frozenset(self.calls)

    @cached_property
    def _around(self) -> frozenset[ModuleCall]:
        return frozenset(call for one in self.calls for call in self.hierarchy.stack(one))

    def covers(self, call: ModuleCall) -> bool:
        """Whether a call is one of those that were selected, or ran inside of one."""
        return not self._calls.isdisjoint(self.hierarchy.stack(call))

    def encloses(self, call: ModuleCall) -> bool:
        """Whether one of the selected calls ran inside of a call."""
        return call in self._around

    @property
    def is_one_call(self) -> bool:
        return self.nodes is None and len(self.calls) == 1


def select_modules(provenance: Provenance, names: Sequence[str]) -> Selection:
    """Module paths, and calls such as `encoder.block#2`."""
    hierarchy = provenance.hierarchy
    calls: dict[ModuleCall, None] = {}
    notes: list[str] = []
    for name in names:
        found = tuple(_calls_named(name, provenance))
        calls.update(dict.fromkeys(found))
        notes += _repeated(name, found, hierarchy)
    chosen = outermost_calls(calls, hierarchy)
    return Selection(tuple(names), hierarchy, chosen, _root(names, chosen, hierarchy), notes=tuple(notes))


def select_calls(hierarchy: Hierarchy, calls: Iterable[ModuleCall]) -> Selection:
    chosen = outermost_calls(calls, hierarchy)
    asked = tuple(map(str, chosen))
    return Selection(asked, hierarchy, chosen, _root(asked, chosen, hierarchy))


def select_nodes(provenance: Provenance, query: str, entries: Sequence[NodeEntry]) -> Selection:
    """Nodes that a query found."""
    hierarchy = provenance.hierarchy
    owners = tuple(dict.fromkeys(owner for entry in entries for owner in entry.attribution.owners))
    if not owners:
        raise UserError(
            f"none of the {len(entries)} nodes that {query} means belongs to a module",
            "Ask for other nodes, or for modules.",
        )
    root = hierarchy.common_ancestor(owners) or ModuleCall(ROOT)
    return Selection((query,), hierarchy, owners, root, frozenset(entry.key for entry in entries))


def outermost_calls(calls: Iterable[ModuleCall], hierarchy: Hierarchy) -> tuple[ModuleCall, ...]:
    """The calls without those that ran inside of another of them."""
    chosen = set(calls)
    order = {site.call: place for place, site in enumerate(hierarchy.calls)}
    outer = [call for call in chosen if chosen.isdisjoint(hierarchy.stack(call)[:-1])]
    return tuple(sorted(outer, key=lambda call: (order.get(call, len(order)), call)))


def _root(names: Sequence[str], calls: tuple[ModuleCall, ...], hierarchy: Hierarchy) -> ModuleCall:
    if len(calls) == 1:
        return calls[0]
    if len(names) == 1 and (path := hierarchy.path_of(names[0])) is not None:
        return ModuleCall(path)  # a container: nobody calls it, and it is what was asked for
    return hierarchy.common_ancestor(calls) or ModuleCall(ROOT)


def _calls_named(name: str, provenance: Provenance) -> Iterator[ModuleCall]:
    hierarchy = provenance.hierarchy
    path = hierarchy.path_of(name)
    if path is None:
        called = ModuleCall.parse(name)
        path = hierarchy.canonical.get(called.path)
        if path is None or called.path == name:
            raise UnknownName("module", name, hierarchy.canonical)
        _check_number(called, path, hierarchy)
        yield ModuleCall(path, called.index)
    elif hierarchy.call_counts.get(path) or _owns_something(path, provenance):
        yield ModuleCall(path)
    else:
        yield from _called_below(path, hierarchy)


def _check_number(called: ModuleCall, path: str, hierarchy: Hierarchy) -> None:
    count = hierarchy.call_counts.get(path, 0)
    if called.index and called.index >= count:
        known = f"Known: {path} to {path}#{count - 1}." if count > 1 else f"Give {path!r}."
        raise UserError(f"there is no call {called}: {path!r} was called {count} times", known)


def _owns_something(path: str, provenance: Provenance) -> bool:
    """A module whose `forward` is used without calling it has nodes and no recorded call."""
    return any(owner.path == path for entry in provenance.nodes.values() for owner in entry.attribution.owners)


def _called_below(path: str, hierarchy: Hierarchy) -> Iterator[ModuleCall]:
    """A container is never called; what is in it is."""
    below = [site.call for site in hierarchy.calls if is_within(site.call.path, path)]
    if not below:
        module = hierarchy.modules[path]
        raise UserError(
            f"{path!r} ({module.class_name}) was never called when the model was exported: it has no nodes",
            "Give a module that the model uses; `modelexport analyze` lists them.",
        )
    yield from below


def _repeated(name: str, calls: tuple[ModuleCall, ...], hierarchy: Hierarchy) -> Iterator[str]:
    if len(calls) != 1 or calls[0].index or name not in hierarchy.canonical:
        return
    count = hierarchy.call_counts.get(calls[0].path, 0)
    if count > 1:
        last = ModuleCall(calls[0].path, count - 1)
        yield f"{name} was called {count} times; this is the first call, {last} is the last"
