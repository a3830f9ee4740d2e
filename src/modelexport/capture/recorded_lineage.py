"""Recorded lineage: what torch's own optimizer made of every node, written down while it works.

The optimizer changes onnx-ir objects in place. A node object that is still there afterwards is the node that it was,
whatever it is called and reads by then. Everything else goes through two functions of onnx-ir, and both are watched:

    replace_nodes_and_values(old_nodes, new_nodes)    a rewrite        new nodes come from the old ones
    old_value.replace_all_uses_with(new_value)        a duplicate      equal operators on equal inputs become one
                                                      a constant       an initializer in the place of what was computed
                                                      a no-op          nobody does its work

So nothing has to be found out by comparing the graph before with the graph after, as it must be for files of other
tools (lineage/). A node that came to be in another way has no link here.

https://onnx.ai/ir-py/api/ir_convenience.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir

from modelexport.capture.isolation import replace_attributes
from modelexport.graph.algorithms import backward_slice
from modelexport.graph.index import KEY_SEPARATOR, MAIN, Graph, Node, value_id
from modelexport.record.lineage import Lineage, Link, Relation
from modelexport.record.provenance import Confidence

# Nodes in a row that one rewrite was ever seen to replace, with room to spare.
_LONGEST_REWRITE = 16
_Container = ir.Graph | ir.Function


class RewriteRecorder:
    """Watches one model from before an optimizer runs until it is done.

    recorder = RewriteRecorder(model)
    with recorder.recording():
        optimize(model)
    recorder.lineage(before, after)     the indexes of the model before and after
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._keys_before, self._names_before = _name_objects(model)
        # By node: the nodes before whose work it does. Objects and not their ids, so that none is used again.
        self._sources: dict[ir.Node, dict[ir.Node, None]] = {node: {node: None} for node in self._keys_before}
        self._relations: dict[ir.Node, Relation] = {}
        # By value: the values before that it took the place of, itself first if it is one of them.
        self._stands_for: dict[ir.Value, dict[ir.Value, None]] = {}
        # By a constant that a rewrite brought along: the nodes before that the rewrite took out.
        self._made_for: dict[ir.Value, dict[ir.Node, None]] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        patches = [
            (ir.convenience, "replace_nodes_and_values", self._watch_rewrites),
            (ir.Value, "replace_all_uses_with", self._watch_values),
        ]
        with replace_attributes(patches):
            yield

    def lineage(self, before: Graph, after: Graph) -> Lineage:
        """Links of the nodes and initializers that are known by now; keys are those of the two indexes."""
        keys, names = _name_objects(self._model)
        links: dict[str, Link] = {}
        for node, key in keys.items():
            sources = [self._keys_before[source] for source in self._sources.get(node, ())]
            if sources and key in after.by_key:
                ordered = tuple(sorted(sources, key=lambda source: before.by_key[source].position))
                relation = self._relations.get(node, Relation.KEPT)
                if len(ordered) == 1:
                    relation = _plain_relation(relation, after.by_key[key], before.by_key[ordered[0]])
                links[key] = Link(ordered, relation)
        values = {name: value for value, name in names.items() if name in after.initializers}
        stand_ins = {name: self._names_stood_for(value) for name, value in values.items()}
        folded = {name: self._folded_from(before, value, stand_ins[name]) for name, value in values.items()}
        made = {name: Link(keys, Relation.FOLDED, Confidence.STRONG) for name, keys in folded.items() if keys}
        return Lineage(links, made, self._replaced_weights(before, after, links, stand_ins))

    def _names_stood_for(self, value: ir.Value) -> list[str]:
        own = [value] if value in self._names_before else []
        return [self._names_before[origin] for origin in (*own, *self._stands_for.get(value, ()))]

    def _folded_from(self, before: Graph, value: ir.Value, origins: Iterable[str]) -> tuple[str, ...]:
        made_for = [before.by_key[self._keys_before[node]] for node in self._made_for.get(value, ())]
        nodes = dict.fromkeys((*_slice_folded(before, origins), *made_for))
        return tuple(node.key for node in sorted(nodes, key=lambda node: node.position))

    def _replaced_weights(
        self, before: Graph, after: Graph, links: Mapping[str, Link], stand_ins: Mapping[str, Sequence[str]]
    ) -> dict[str, tuple[str, ...]]:
        """Initializers after that stand for others, by name: deduplicated ones, and what a rewrite made of several.

        Conv(w), BatchNormalization(scale)  ──►  Conv(w2)        w2 stands for w and scale
        """
        replaced: dict[str, tuple[str, ...]] = {}
        for name, names in stand_ins.items():
            origins = tuple(origin for origin in names if origin in before.initializers)
            # A new weight that has the name of one that it was made of is found by the fused node that reads it.
            if not names and name not in before.initializers:
                readers = [links[node.key] for node in after.consumers.get(name, ()) if node.key in links]
                sources = [before.by_key[key] for link in readers for key in link.sources]
                read = dict.fromkeys(value for source in sources for value in source.inputs)
                origins = tuple(value for value in read if value in before.initializers and value not in stand_ins)
            if origins and origins != (name,):
                replaced[name] = origins
        return replaced

    def _watch_rewrites(self, replace: Callable[..., None]) -> Callable[..., None]:
        def replace_and_record(
            graph: Any,
            /,
            insertion_point: ir.Node,
            old_nodes: Sequence[ir.Node],
            new_nodes: Sequence[ir.Node],
            old_values: Sequence[ir.Value],
            new_values: Sequence[ir.Value],
        ) -> None:
            # A rewrite that keeps what it matched, in case that somebody else reads it, does not say what it matched.
            replaced = list(old_nodes) or _nodes_between(new_nodes, old_values)
            self._record_rewrite(replaced, new_nodes)
            replace(graph, insertion_point, old_nodes, new_nodes, old_values, new_values)

        return replace_and_record

    def _record_rewrite(self, replaced: Iterable[ir.Node], new_nodes: Sequence[ir.Node]) -> None:
        sources = {source: None for node in replaced for source in self._sources.get(node, ())}
        # The branch of an If that is always taken is moved out of it: its nodes are what they were.
        for node in new_nodes:
            if node not in self._sources:
                self._sources[node] = dict(sources)
                parts = [part for part in new_nodes if part.op_type != "Constant"]
                is_part = len(sources) == 1 and len(parts) > 1
                self._relations[node] = Relation.SPLIT if is_part else Relation.FUSED
            for value in node.inputs:
                if value is not None and value.producer() is None and value not in self._names_before:
                    self._made_for.setdefault(value, {}).update(sources)

    def _watch_values(self, replace: Callable[..., None]) -> Callable[..., None]:
        def replace_and_record(value: ir.Value, replacement: ir.Value, /, *args: Any, **kwargs: Any) -> None:
            self._record_replacement(value, replacement)
            replace(value, replacement, *args, **kwargs)

        return replace_and_record

    def _record_replacement(self, value: ir.Value, replacement: ir.Value) -> None:
        own = {value: None} if value in self._names_before else {}
        self._stands_for.setdefault(replacement, {}).update(own | self._stands_for.get(value, {}))
        duplicate, kept = value.producer(), replacement.producer()
        if kept is None:
            brought: dict[ir.Node, None] = {}
            if duplicate is not None and duplicate not in self._keys_before:
                brought = self._sources.get(duplicate, {})
            self._made_for.setdefault(replacement, {}).update({**self._made_for.get(value, {}), **brought})
        if duplicate is not None and kept is not None and _are_duplicates(duplicate, kept):
            sources = self._sources.setdefault(kept, {})
            if len(sources) < 2:
                self._relations[kept] = Relation.SHARED
            sources.update(self._sources.get(duplicate, {}))


def _plain_relation(relation: Relation, node: Node, source: Node) -> Relation:
    """How a node came from one source: a rewrite may have put another of its kind in its place."""
    if (node.op_type, node.attributes) == (source.op_type, source.attributes):
        return Relation.KEPT if node.key == source.key else Relation.RENAMED
    return Relation.SPLIT if relation is Relation.SPLIT else Relation.REWRITTEN


def _are_duplicates(node: ir.Node, other: ir.Node) -> bool:
    """Equal operators on equal inputs, as common subexpression elimination merges them."""
    same = node.op_identifier() == other.op_identifier() and len(node.inputs) == len(other.inputs)
    return same and node is not other and all(a is b for a, b in zip(node.inputs, other.inputs, strict=True))


def _nodes_between(new_nodes: Sequence[ir.Node], old_values: Iterable[ir.Value]) -> list[ir.Node]:
    """The nodes that made some values from what new nodes read; at least those that made them."""
    read = {value for node in new_nodes for value in node.inputs if value is not None}
    between: dict[ir.Node, bool] = {}

    def leads_here(node: ir.Node, steps: int) -> bool:
        if node not in between:
            between[node] = False
            producers = [value.producer() for value in node.inputs if value is not None and value not in read]
            known = [producer for producer in producers if producer is not None] if steps else []
            above = [leads_here(producer, steps - 1) for producer in known]
            between[node] = any(above) or any(value in read for value in node.inputs)
        return between[node]

    makers = dict.fromkeys(producer for value in old_values if (producer := value.producer()) is not None)
    for maker in makers:
        leads_here(maker, _LONGEST_REWRITE)
    return [node for node, leads in between.items() if leads or node in makers]


def _slice_folded(before: Graph, names: Iterable[str]) -> list[Node]:
    """The nodes that computed some constants, as far back as nothing but constants is read."""

    def step(node: Node) -> Iterator[Node]:
        # A literal is data, not work: several modules may share one.
        working = (producer for producer in before.predecessors(node) if producer.inputs)
        return (producer for producer in working if producer.key not in before.computed)

    makers = (before.producers[name] for name in names if name in before.producers)
    return backward_slice(dict.fromkeys(makers), step)


def _name_objects(model: ir.Model) -> tuple[dict[ir.Node, str], dict[ir.Value, str]]:
    """The key of every node and the id of every value, as graph/index.py has them."""
    keys: dict[ir.Node, str] = {}
    names: dict[ir.Value, str] = {}
    waiting: list[tuple[str, _Container]] = [(MAIN, model.graph)]
    waiting += [(_function_id(function), function) for function in model.functions.values()]
    while waiting:
        graph_id, graph = waiting.pop()
        own = [*graph.inputs, *(graph.initializers.values() if isinstance(graph, ir.Graph) else ())]
        own += [output for node in graph for output in node.outputs]
        names |= {value: value_id(graph_id, value.name) for value in own if value.name}
        for node in graph:
            first = next((value.name for value in node.outputs if value.name), node.name)
            keys[node] = value_id(graph_id, first or "")
            for attribute in node.attributes.values():
                waiting += _subgraphs(keys[node], attribute)
    return keys, names


def _subgraphs(key: str, attribute: ir.Attr) -> Iterator[tuple[str, _Container]]:
    body_id = f"{key}{KEY_SEPARATOR}{attribute.name}"
    if attribute.type == ir.AttributeType.GRAPH:
        yield body_id, attribute.as_graph()
    elif attribute.type == ir.AttributeType.GRAPHS:
        yield from ((f"{body_id}[{position}]", body) for position, body in enumerate(attribute.as_graphs()))


def _function_id(function: ir.Function) -> str:
    name = f"{function.domain}::{function.name}"
    return f"{name}:{function.overload}" if function.overload else name
