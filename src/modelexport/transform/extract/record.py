"""Record of a part: the module tree and the attributions of a cut, with the module that was cut out as the root.

    encoder.layer.3.attention.query   in the model      →   attention.query   in the part

Calls are numbered anew, and a node that came along from outside belongs to the root.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from modelexport.record.hierarchy import ROOT, CallSite, Hierarchy, Module, ModuleCall, TensorInfo, join, lineage_of
from modelexport.record.provenance import Attribution, Confidence, Evidence, EvidenceKind, Provenance, is_within
from modelexport.transform.extract.selection import CutSelection

_SOURCE = "taken along"


class PartRecord:
    """Paths and calls of a model, and what they are in the cut."""

    def __init__(self, provenance: Provenance, selection: CutSelection) -> None:
        self._before = provenance.hierarchy
        self._provenance = provenance
        self._selection = selection
        self._top = selection.root

    @cached_property
    def hierarchy(self) -> Hierarchy:
        """Modules and calls of the cut."""
        modules = [self._module(self._before.modules[path], new) for path, new in self._paths.items()]
        return Hierarchy.of(modules, self._sites())

    @cached_property
    def _kept_calls(self) -> tuple[CallSite, ...]:
        return tuple(
            site
            for site in self._before.calls
            if site.call != self._top
            and (
                self._selection.covers(site.call) or (self._selection.encloses(site.call) and self._is_below(site.call))
            )
        )

    def _is_below(self, call: ModuleCall) -> bool:
        return self._top in self._before.stack(call) or (
            self._top not in self._before.stacks and is_within(call.path, self._top.path)
        )

    @cached_property
    def _paths(self) -> Mapping[str, str]:
        """By path in the model: the path in the cut. The root comes first."""
        called = {site.call.path for site in self._kept_calls}
        called |= {call.path for call in self._selection.calls}
        kept = [path for path in self._before.modules if path != self._top.path and self._is_kept(path, called)]
        paths = {self._top.path: ROOT}
        strangers: list[str] = []
        for path in kept:
            inside = next(self._inside(path), None)
            if inside is None:
                strangers.append(path)
            else:
                paths.setdefault(path, inside)
        taken = set(paths.values())
        for path in strangers:
            paths[path] = _unused(path, taken)
            taken.add(paths[path])
        return paths

    def _is_kept(self, path: str, called: set[str]) -> bool:
        if path in called:
            return True
        if not is_within(path, self._top.path):
            return False
        if any(is_within(path, call.path) for call in self._selection.calls):
            return True
        return any(is_within(inner, path) for inner in called)

    def _inside(self, path: str) -> Iterator[str]:
        """A module's paths below the root, without the root's."""
        module = self._before.modules[path]
        for name in (path, *module.aliases):
            if is_within(name, self._top.path) and name != self._top.path:
                yield name.removeprefix(f"{self._top.path}." if self._top.path else "")

    def _module(self, module: Module, path: str) -> Module:
        aliases = tuple(name for name in self._inside(module.path) if name != path) if path else ()
        return replace(
            module,
            path=path,
            aliases=aliases,
            parameters=tuple(map(self._tensor, module.parameters)),
            buffers=tuple(map(self._tensor, module.buffers)),
        )

    def _tensor(self, tensor: TensorInfo) -> TensorInfo:
        tied = [new for name in tensor.tied if (new := self._tensor_name(name)) is not None]
        return replace(tensor, tied=tuple(tied))

    def _tensor_name(self, name: str) -> str | None:
        path, _, own = name.rpartition(".")
        new = self._paths.get(self._before.canonical.get(path, path))
        return None if new is None else join(new, own)

    @cached_property
    def _calls(self) -> Mapping[ModuleCall, ModuleCall]:
        """By call of the model: the call in the cut, numbered anew."""
        counts = {ROOT: 1}
        calls = {self._top: ModuleCall(ROOT)}
        for site in self._kept_calls:
            path = self._paths[site.call.path]
            calls[site.call] = ModuleCall(path, counts.get(path, 0))
            counts[path] = counts.get(path, 0) + 1
        return calls

    def _sites(self) -> Iterator[CallSite]:
        root = ModuleCall(ROOT)
        yield CallSite(root, None)
        for site in self._kept_calls:
            parent = root if site.parent is None else self._calls.get(site.parent, root)
            yield CallSite(self._calls[site.call], parent, site.through)

    def attribution(self, attribution: Attribution) -> Attribution:
        """In terms of the cut; what belongs to others is the root's."""
        owners = tuple(dict.fromkeys(new for owner in attribution.owners if (new := self._call(owner)) is not None))
        if owners:
            return replace(attribution, owners=owners, ancestor=self.hierarchy.common_ancestor(owners), lost=())
        root = ModuleCall(ROOT)
        evidence = Evidence(EvidenceKind.DATAFLOW, _SOURCE, attribution.module or "")
        return replace(
            attribution,
            owners=(root,),
            ancestor=root,
            confidence=max(min(attribution.confidence, Confidence.INFERRED), Confidence.FALLBACK),
            evidence=(*attribution.evidence, evidence),
            reason="",
            lost=(),
        )

    def _call(self, owner: ModuleCall) -> ModuleCall | None:
        if owner in self._calls:
            return self._calls[owner]
        # A module that ran without being called has no recorded call.
        path = self._paths.get(owner.path)
        unrecorded = owner not in self._before.stacks and path is not None and self._selection.covers(owner)
        return ModuleCall(path) if unrecorded and path is not None else None

    @cached_property
    def absent(self) -> Mapping[str, str]:
        return {self._paths[path]: reason for path, reason in self._provenance.absent.items() if path in self._paths}


def attribute_added_node(detail: str) -> Attribution:
    """Of a node that there was none of before the cut."""
    root = ModuleCall(ROOT)
    return Attribution((root,), root, Confidence.INFERRED, (Evidence(EvidenceKind.DATAFLOW, _SOURCE, detail),))


def _unused(path: str, taken: Iterable[str]) -> str:
    names = set(taken)
    unused = path or "model"
    while unused in names or any(above in names for above in list(lineage_of(unused))[1:-1]):
        unused = f"_{unused}"
    return unused
