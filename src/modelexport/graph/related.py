"""Relatedness: do these two come from one model? Every measure of it, and all thresholds side by side.

    question                                  measure                    enough (constants below)
    do two module trees agree?                `module_overlap`           half of the modules            verify, diff
    does a run of torch compute this graph?   `value_overlap`            a fifth of weights or values   attach
    did a tool make this graph of that one?   `node_overlap`, weights    0.55; 0.3 of the weights       relink, diff
    is this graph a part of that one?         nodes by name              0.95 of the nodes              relink
    are two graphs worth comparing?           nodes paired, weights      0.35; 0.1 of the weights       diff
    is this record about this graph?          nodes by name              0.1, or 0.8 without weights    all verbs
    do names or metadata tell its modules?    nodes with a module        half of the nodes              diff
    are the scopes in a file those of it?     nodes refuted by values    at most a fifth                attach
    do two graphs name values alike?          nodes by name              half of the nodes              compare
    is this measurement about this model?     modules with classes       every one that it names        view, convert

They differ because the cost of a mistake does: `relink` writes what it believes into a file, `diff` only shows it. This
lies in `graph` so that rooms which may not import each other ask the same question in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from modelexport.errors import RecordMismatch, some_of
from modelexport.graph.index import FLOATS, Graph, Node
from modelexport.record.hierarchy import Hierarchy, Module
from modelexport.record.lineage import Lineage, NodeOverlap, Relation
from modelexport.record.outline import Sketch, Sketches
from modelexport.record.provenance import Provenance

# Of the modules with parameters: another version of a model may have some more or fewer, or other sizes.
_SAME_MODULES = 0.5

# Of distinctive weights, and of computed values: fused, quantized and partly retrained files share more with the run.
_SAME_VALUES = 0.2

# As far as nodes are recognized (`NodeOverlap.degree`). Measured: files of other models reach 0.48, even those of the
# same architecture; what a tool made of a model starts at 0.63.
_RELINKED_NODES = 0.55
# The share of its weights that a part of a model, or a model with another head, has in common with it: few nodes may.
_RELINKED_WEIGHTS = 0.3
# The share of nodes that a part of a model has in common with it, by name and inputs: a part has few of the nodes
# before, so that the degree says nothing, and it may have no weights.
_PART_NODES = 0.95

# Lower than for `relink`: the same model by another exporter is a fair question, and an answer harms nobody.
_COMPARED_NODES = 0.35
_COMPARED_WEIGHTS = 0.1

# A record that knows a smaller share of the nodes, or of the weights, says nothing about the file.
_RECORDED = 0.1
# The share of nodes that it must know if it knows hardly a weight: exporters name all values alike (`add_12`).
_RECORDED_WITHOUT_WEIGHTS = 0.8

# The share of nodes that must say themselves where they belong, or that an older record must know, to be believed.
_TOLD_NODES = 0.5
# An optimizer misplaces a scope here and there; a file with more of them tells of another graph.
_REFUTED_SCOPES = 0.2

# The share of the larger graph's nodes with the same key in both. With fewer, names say nothing about edges.
_SAME_NAMES = 0.5


@dataclass(frozen=True)
class ModuleOverlap:
    """How much of one module tree is in another one.

    shared   modules that both have: under one path, of one class, with parameters of the same shapes
    modules  how many there are in the first tree. Those with parameters count, or all where none has any.
    unlike   paths of modules that one of them has and the other has not, or has in another size
    """

    shared: int
    modules: int
    unlike: tuple[str, ...]

    @property
    def related(self) -> bool:
        return self.shared >= _SAME_MODULES * self.modules

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"modules that are not the same in both: {some_of(self.unlike)}",) if self.unlike else ()

    def __str__(self) -> str:
        named = f" ({self.unlike[0] or 'the model itself'} is not, for one)" if self.unlike else ""
        return f"{self.shared} of {self.modules} modules are the same in both{named}"


def module_overlap(tree: Hierarchy, other: Hierarchy) -> ModuleOverlap:
    distinctive = [module for module in tree.modules.values() if module.parameters] or list(tree.modules.values())
    unlike = [module.path for module in distinctive if not _are_alike(module, other.modules.get(module.path))]
    shared = len(distinctive) - len(unlike)
    unlike += [path for path, module in other.modules.items() if module.parameters and path not in tree.modules]
    return ModuleOverlap(shared, len(distinctive), tuple(unlike))


def _are_alike(module: Module, other: Module | None) -> bool:
    if other is None or module.class_name != other.class_name:
        return False
    shapes = {tensor.name: tensor.shape for tensor in other.parameters}
    return all(shapes.get(tensor.name) == tensor.shape for tensor in module.parameters)


def ensure_same_model(hierarchy: Hierarchy, classes: Mapping[str, str], path: Path) -> None:
    """Raise RecordMismatch if a document of `profile` or `verify`, with these classes by path, is not about this model.

    Names of nodes are alike in models that have nothing in common; modules with their classes are not.
    """
    for name, class_name in classes.items():
        module = hierarchy.modules.get(hierarchy.canonical.get(name, name))
        if module is None or module.class_name != class_name:
            there = f"is of the class {module.class_name}" if module else "is not there"
            raise RecordMismatch(
                f"{path} is of another model: it has a module {name or '(model)'} of the class {class_name}, "
                f"which {there} in this one",
                "Give what `profile` or `verify` wrote about this file, or about one that was made from it.",
            )
    if not classes:
        raise RecordMismatch(f"{path} names no module", "Give what `profile` or `verify` wrote about this file.")


@dataclass(frozen=True)
class ValueOverlap:
    """How many distinctive weights and computed values a graph has, and how many of them a run of torch has too."""

    weights: int
    weights_found: int
    values: int
    values_found: int

    @property
    def belongs(self) -> bool:
        # A graph without anything distinctive cannot be told from another.
        if not self.weights:
            return self.computes_the_same
        return self.weights_found > _SAME_VALUES * self.weights or (self.values > 0 and self.computes_the_same)

    @property
    def computes_the_same(self) -> bool:
        """Whether enough of what the graph computes was computed in the run; one of nothing distinctive is believed."""
        return self.values_found > _SAME_VALUES * self.values or not self.values

    def __str__(self) -> str:
        weights = f"{self.weights_found} of {self.weights} weights"
        return f"{weights} and {self.values_found} of {self.values} computed values" if self.values else weights


def value_overlap(graph: Graph, distinctive: Collection[str], matched: Container[str]) -> ValueOverlap:
    """`distinctive` are the values of the graph that are worth looking for, `matched` those that the run made too."""
    weights = [name for name in distinctive if name in graph.initializers]
    computed = [name for name in distinctive if name in graph.computed and name not in graph.inputs]
    weights_found, values_found = (sum(name in matched for name in names) for names in (weights, computed))
    return ValueOverlap(len(weights), weights_found, len(computed), values_found)


def node_overlap(before: Collection[Node], after: Collection[Node], sources: Mapping[str, Node]) -> NodeOverlap:
    """`sources`: by the key of a node after, the node before whose work it does."""
    origins = {origin.key for origin in sources.values()}
    return NodeOverlap(len(sources) / len(after) if after else 1.0, len(origins) / len(before) if before else 1.0)


def is_made_from(graph: Graph, before: Graph, lineage: Lineage, same_weights: float) -> bool:
    """Whether a tool made a graph of another one, or it is a part of that one."""
    return does_same_work(lineage) or same_weights >= _RELINKED_WEIGHTS or _is_part(graph, before)


def does_same_work(lineage: Lineage) -> bool:
    """Whether so many nodes were recognized that one graph is the other, rewritten; weights may be others."""
    return lineage.overlap.degree >= _RELINKED_NODES


def _is_part(graph: Graph, before: Graph) -> bool:
    """Whether nearly every node is there before, under its name and with what it reads."""
    pairs = ((node, before.by_key.get(node.key)) for node in graph.nodes)
    kept = sum(was is not None and (was.op_type, was.inputs) == (node.op_type, node.inputs) for node, was in pairs)
    return bool(graph.nodes) and kept >= _PART_NODES * len(graph.nodes)


def are_comparable(same_nodes: float, same_weights: float) -> bool:
    """Whether two graphs have enough in common for a list of their differences to be of use."""
    return same_nodes >= _COMPARED_NODES or same_weights >= _COMPARED_WEIGHTS


def have_same_names(graph: Graph, other: Graph) -> bool:
    shared = sum(key in other.by_key for key in graph.by_key)
    return shared >= _SAME_NAMES * max(len(graph.nodes), len(other.nodes), 1)


def count_known_nodes(record: Provenance, graph: Graph) -> int:
    return sum(node.key in record.nodes for node in graph.nodes)


def describes(record: Provenance, graph: Graph, *, beside: bool) -> bool:
    """Whether a record speaks of this graph, or of one it was made from. beside: it may be that of another model."""
    if record.origin.graph == graph.fingerprint or not graph.nodes:
        return True
    weights = sum(name in record.initializers for name in graph.initializers)
    strange = beside and graph.initializers and weights < _RECORDED * len(graph.initializers)
    enough = _RECORDED_WITHOUT_WEIGHTS if strange else _RECORDED
    return count_known_nodes(record, graph) / len(graph.nodes) >= enough


def knows_most_nodes(calls: Mapping[str, str], graph: Graph) -> bool:
    """Whether module calls by the keys of nodes, from names or metadata, say enough about a graph to be believed."""
    return len(calls) >= _TOLD_NODES * len(graph.nodes)


def are_scopes_refuted(contradictions: int, compared: int) -> bool:
    """Whether values contradict so many of the scopes in a file that these were written for another graph."""
    return contradictions > _REFUTED_SCOPES * compared


@dataclass(frozen=True)
class ComparedWeight:
    """A weight after, by its sketch.

    origins  names of the weights before that it stands for
    alike    those of them that hold the same as far as sketches tell
    """

    name: str
    sketch: Sketch
    origins: tuple[str, ...]
    alike: tuple[str, ...]


class WeightComparison:
    """The weights of a graph against those of the graph that it was made from, by sketches of their numbers."""

    def __init__(self, before: Graph, after: Graph, sketches: tuple[Sketches, Sketches], lineage: Lineage) -> None:
        self._before, self._after, self._lineage = before, after, lineage
        self._known = {name: sketch for name in before.initializers if (sketch := sketches[0](name)) is not None}
        self._weights = [self._compare(name, sketch) for name in after.initializers if (sketch := sketches[1](name))]

    @property
    def share(self) -> float:
        """Share of distinctive weights after that are weights before by their numbers, or vice versa: the larger."""
        distinctive = [weight for weight in self._weights if weight.sketch.is_distinctive]
        kept = {name for weight in distinctive for name in weight.alike}
        whole = sum(sketch.is_distinctive for sketch in self._known.values())
        same = sum(bool(weight.alike) for weight in distinctive)
        return max(same / len(distinctive) if distinctive else 0.0, len(kept) / whole if whole else 0.0)

    @property
    def differing(self) -> tuple[str, ...]:
        """Names of weights before that kept name and shape, and hold something else; and of quantized weights."""
        names = (*self._find_changed(), *self._find_quantized())
        return tuple(name for name in dict.fromkeys(names) if name not in self._folded)

    def _compare(self, name: str, sketch: Sketch) -> ComparedWeight:
        origins = self._lineage.stands_for.get(name, (name,))
        alike = tuple(origin for origin in origins if self._holds_same(sketch, origin))
        return ComparedWeight(name, sketch, origins, alike)

    def _holds_same(self, sketch: Sketch, origin: str) -> bool:
        other = self._known.get(origin)
        return other is not None and (sketch.distance(other) < math.inf or bool(sketch.likeness(other)))

    def _find_changed(self) -> Iterator[str]:
        """Weights that are floats still. What is hardly a weight may be cut off when it is rounded."""
        for weight in self._weights:
            was, other = self._before.initializers.get(weight.name), self._known.get(weight.name)
            if weight.sketch.quantized or was is None or other is None:
                continue
            now = self._after.initializers[weight.name]
            # Of one shape, and of one type or with fewer digits: else a tool has made something new of it.
            comparable = now.dtype == was.dtype or (other.is_distinctive and {now.dtype, was.dtype} <= FLOATS)
            if comparable and now.shape == was.shape and weight.sketch.distance(other) == math.inf:
                yield weight.name

    def _find_quantized(self) -> Iterator[str]:
        """Where it is known of which one they were made; else, one may be hard to know again, but not most of them."""
        quantized = [
            weight for weight in self._weights if weight.sketch.quantized and not self._has_many_scales(weight.name)
        ]
        for weight in quantized:
            origin = self._known.get(weight.origins[0]) if len(weight.origins) == 1 else None
            if not weight.alike and origin is not None and origin.is_distinctive:
                yield weight.origins[0]
        # Biases tell little: other versions of a model may have the same.
        sides = {sketch.sides for sketch in self._known.values() if sketch.is_distinctive and len(sketch.sides) > 1}
        fresh = [weight for weight in quantized if weight.name not in self._before.initializers]
        likely = [weight for weight in fresh if weight.sketch.is_distinctive and weight.sketch.sides in sides]
        if not self._folded and 2 * sum(bool(weight.alike) for weight in likely) < len(likely):
            yield from (weight.name for weight in likely if not weight.alike)

    def _has_many_scales(self, name: str) -> bool:
        """Whether a quantized weight has a scale or zero point for every channel: its numbers say little without.

        Per-axis quantization: https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
        """
        types = {*FLOATS, self._after.initializers[name].dtype}
        read = {value for node in self._after.consumers.get(name, ()) for value in node.inputs if value != name}
        beside = [self._after.initializers[value] for value in read if value in self._after.initializers]
        return any(tensor.dtype in types and math.prod(tensor.shape) > 1 for tensor in beside)

    @cached_property
    def _folded(self) -> frozenset[str]:
        """What fused nodes read that have taken in a node whose weights are gone: these are in them now."""
        values: set[str] = set()
        for node in self._after.nodes:
            link = self._lineage.nodes.get(node.key)
            if link is None:  # in a function that nobody calls
                continue
            sources = (self._before.by_key[key] for key in link.sources if key in self._before.by_key)
            read = [value for source in sources for value in source.inputs if value in self._before.initializers]
            if link.relation is Relation.FUSED and any(value not in self._after.initializers for value in read):
                values.update(node.inputs)
        return frozenset(values)
