"""Record of a part: the module tree and the attributions of a cut, with the module that was cut out as the root.

    encoder.layer.3.attention.query   in the model      →   attention.query   in the part
    embeddings, used by the part      outside of it     →   embeddings, or _embeddings if the part has one

Calls are numbered anew, and a node that came along from outside belongs to the root.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from modelexport.record.hierarchy import ROOT, CallSite, Hierarchy, Module, ModuleCall, TensorInfo, join, lineage_of
from modelexport.record.provenance import Attribution, Confidence, Evidence, EvidenceKind, Provenance, is_within
from modelexport.transform.extract.selection import CutSelection

_SOURCE = "taken along"
_ROOT_CALL = ModuleCall(ROOT)


class PartRecord:
    """Paths and calls of a model, and what they are in the cut."""

    def __init__(self, provenance: Provenance, selection: CutSelection) -> None:
        self._before = provenance.hierarchy
        self._provenance = provenance
        self._selection = selection
        self._top = selection.root

    @cached_property
    def hierarchy(self) -> Hierarchy:
        modules = [self._module(self._before.modules[path], new) for path, new in self._paths.items()]
        return Hierarchy.of(modules, self._sites())

    @cached_property
    def _kept_calls(self) -> tuple[CallSite, ...]:
        """Calls that were selected, and those between them and the root; without the root's own."""
        selection = self._selection
        sites = (site for site in self._before.calls if site.call != self._top)
        return tuple(
            site
            for site in sites
            if selection.covers(site.call) or (selection.encloses(site.call) and self._is_below(site.call))
        )

    def _is_below(self, call: ModuleCall) -> bool:
        if self._top in self._before.stacks:
            return self._top in self._before.stack(call)
        return is_within(call.path, self._top.path)  # a container is never called, so it is on no stack

    @cached_property
    def _paths(self) -> Mapping[str, str]:
        """By path in the model: the path in the cut. The root comes first."""
        called = {site.call.path for site in self._kept_calls}
        called |= {call.path for call in self._selection.calls}
        kept = [path for path in self._before.modules if path != self._top.path and self._is_kept(path, called)]
        inside = {path: next(self._inside(path), None) for path in kept}
        paths = {self._top.path: ROOT, **{path: new for path, new in inside.items() if new is not None}}
        # Modules from elsewhere come last: what is below the root keeps its name.
        for path in (path for path, new in inside.items() if new is None):
            paths[path] = _unused(path, set(paths.values()))
        return paths

    def _is_kept(self, path: str, called: set[str]) -> bool:
        """What was called, all below what was selected, and the containers of what was called."""
        if path in called or not is_within(path, self._top.path):
            return path in called
        selected = any(is_within(path, call.path) for call in self._selection.calls)
        return selected or any(is_within(inner, path) for inner in called)

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
        """A tensor of the cut; names that it is tied to outside of the cut are left out."""
        split = [name.rpartition(".") for name in tensor.tied]
        owners = [(self._before.canonical.get(path, path), own) for path, _, own in split]
        return replace(tensor, tied=tuple(join(self._paths[path], own) for path, own in owners if path in self._paths))

    @cached_property
    def _calls(self) -> Mapping[ModuleCall, ModuleCall]:
        """By call of the model: the call in the cut, numbered anew."""
        counts = Counter({ROOT: 1})
        calls = {self._top: _ROOT_CALL}
        for site in self._kept_calls:
            path = self._paths[site.call.path]
            calls[site.call] = ModuleCall(path, counts[path])
            counts[path] += 1
        return calls

    def _sites(self) -> Iterator[CallSite]:
        yield CallSite(_ROOT_CALL, None)
        for site in self._kept_calls:
            parent = _ROOT_CALL if site.parent is None else self._calls.get(site.parent, _ROOT_CALL)
            yield CallSite(self._calls[site.call], parent, site.through)

    def attribution(self, attribution: Attribution) -> Attribution:
        """In terms of the cut; what belongs to others is the root's."""
        owners = tuple(dict.fromkeys(new for owner in attribution.owners if (new := self._call(owner)) is not None))
        if owners:
            return replace(attribution, owners=owners, ancestor=self.hierarchy.common_ancestor(owners), lost=())
        evidence = Evidence(EvidenceKind.DATAFLOW, _SOURCE, attribution.module or "")
        return replace(
            attribution,
            owners=(_ROOT_CALL,),
            ancestor=_ROOT_CALL,
            # That the part needs it is seen in the data flow, and no more: never stated, and never unknown.
            confidence=max(min(attribution.confidence, Confidence.INFERRED), Confidence.FALLBACK),
            evidence=(*attribution.evidence, evidence),
            reason="",
            lost=(),
        )

    def _call(self, owner: ModuleCall) -> ModuleCall | None:
        path = self._paths.get(owner.path)
        if owner in self._calls or path is None:
            return self._calls.get(owner)
        # A module that ran without being called has no recorded call.
        return ModuleCall(path) if owner not in self._before.stacks and self._selection.covers(owner) else None

    @cached_property
    def absent(self) -> Mapping[str, str]:
        """By path in the cut: why a module has no node."""
        return {self._paths[path]: reason for path, reason in self._provenance.absent.items() if path in self._paths}


def attribute_added_node(detail: str) -> Attribution:
    evidence = Evidence(EvidenceKind.DATAFLOW, _SOURCE, detail)
    return Attribution((_ROOT_CALL,), _ROOT_CALL, Confidence.INFERRED, (evidence,))


def _unused(path: str, names: Collection[str]) -> str:
    """A path that is not there, nor below one that is: it would look like a child of a module of the part."""
    unused = path or "model"
    while unused in names or any(above in names for above in list(lineage_of(unused))[1:-1]):
        unused = f"_{unused}"
    return unused
