"""Faults to plant: wrong modules in a record, wrong numbers in a graph."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import modelexport as mx
from modelexport.api.writing import write_tagged
from modelexport.graph.file.metadata import EmbedOptions
from modelexport.graph.file.reading import open_model
from modelexport.record.hierarchy import Hierarchy, ModuleCall, parent_path
from modelexport.record.provenance import Provenance

Owners = tuple[ModuleCall, ...]


@dataclass(frozen=True)
class Planted:
    """A record with faults in it, and the keys of the nodes that they are in."""

    record: Provenance
    nodes: frozenset[str]

    def write(self, source: Path, target: Path) -> Path:
        """The file with this record in the place of its own."""
        write_tagged(open_model(source), self.record, target, EmbedOptions())
        return target


def swapped_layers(record: Provenance, among: Collection[str]) -> Planted:
    """Two layers of one kind for each other."""
    one, other = _alike_siblings(record.hierarchy)

    def swapped(path: str) -> str:
        for a, b in ((one, other), (other, one)):
            if path == a or path.startswith(f"{a}."):
                return b + path.removeprefix(a)
        return path

    return _changed(record, among, lambda owners: tuple(replace(own, path=swapped(own.path)) for own in owners))


def moved_to_sibling(record: Provenance, among: Collection[str], count: int = 5) -> Planted:
    """Some nodes to a module beside the one that they belong to."""
    calls = record.hierarchy.calls
    parents = {site.call: site.parent for site in calls}
    chance = random.Random(0)

    def beside(owners: Owners) -> Owners:
        own = owners[0]
        others = [site.call for site in calls if site.parent == parents[own] and site.call not in owners]
        return (chance.choice(others),) if others else owners

    return _changed(record, chance.sample(sorted(among), min(count, len(among))), beside)


def moved_anywhere(record: Provenance, among: Collection[str], *, keep: bool) -> Planted:
    """Every third node to a call that has nothing to do with its own, or to both of them."""
    stack = record.hierarchy.stack
    chance = random.Random(0)

    def elsewhere(owners: Owners) -> Owners:
        around = {call for owner in owners for call in stack(owner)}
        others = [site.call for site in record.hierarchy.calls if site.call not in around]
        strange = [call for call in others if not set(owners) & set(stack(call))]
        return (*(owners if keep else ()), chance.choice(strange)) if strange else owners

    return _changed(record, sorted(among)[::3], elsewhere)


def shifted_calls(record: Provenance, among: Collection[str]) -> Planted:
    """Every call of a module that runs several times one later, the last one first."""
    counts = record.hierarchy.call_counts

    def later(call: ModuleCall) -> ModuleCall:
        return replace(call, index=(call.index + 1) % counts[call.path])

    return _changed(record, among, lambda owners: tuple(map(later, owners)))


def dropped_owner(record: Provenance, among: Collection[str], *, keep: int) -> Planted:
    """One owner alone for each node that has several."""
    return _changed(record, among, lambda owners: (owners[keep],) if len(owners) > 1 else owners)


def perturbed_weight(source: Path, target: Path, weight: str, size: float = 0.05) -> Path:
    model = onnx.load(source)
    tensor = next(item for item in model.graph.initializer if item.name == weight)
    before = numpy_helper.to_array(tensor)
    noise = np.random.default_rng(0).standard_normal(before.shape) * size * np.sqrt(np.mean(np.square(before)))
    tensor.CopyFrom(numpy_helper.from_array((before + noise).astype(before.dtype), weight))
    onnx.save(model, target)
    return target


def changed_attribute(source: Path, target: Path, node: str, values: Mapping[str, object]) -> Path:
    """The node that makes `node` with other attributes: a wrong axis, a wrong epsilon."""
    model = onnx.load(source)
    found = next(item for item in model.graph.node if node in item.output)
    kept = [item for item in found.attribute if item.name not in values]
    del found.attribute[:]
    found.attribute.extend([*kept, *(onnx.helper.make_attribute(name, value) for name, value in values.items())])
    onnx.save(model, target)
    return target


def _changed(record: Provenance, among: Iterable[str], change: Callable[[Owners], Owners]) -> Planted:
    nodes = dict(record.nodes)
    planted = set()
    for key in among:
        before = nodes[key].attribution
        owners = change(before.owners) if before.owners else ()
        if set(owners) != set(before.owners):
            ancestor = record.hierarchy.common_ancestor(owners)
            nodes[key] = replace(nodes[key], attribution=replace(before, owners=owners, ancestor=ancestor))
            planted.add(key)
    return Planted(replace(record, nodes=nodes), frozenset(planted))


def _alike_siblings(hierarchy: Hierarchy) -> tuple[str, str]:
    """The first two modules of one class that lie beside each other and hold the same kinds of modules."""
    for path, module in hierarchy.modules.items():
        for other, its in hierarchy.modules.items():
            if other > path and parent_path(other) == parent_path(path) and its.class_name == module.class_name:
                below = len(hierarchy.children(path))
                if below and below == len(hierarchy.children(other)):
                    return path, other
    raise AssertionError("there are no two layers of one kind")


def provable(verification: mx.Verification) -> frozenset[str]:
    """The nodes whose module values can tell: floats that depend on the inputs, and are not only zeros and ones."""
    assert verification.proof is not None
    shown = (mx.Verdict.PROVED, mx.Verdict.ENCLOSED)
    nodes = verification.proof.nodes
    return frozenset(node.key for node in nodes if node.compute and node.verdict in shown and not node.reason)
