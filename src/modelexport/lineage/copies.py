"""Copies: a file that holds the graph before several times is matched copy by copy.

    before    x ──► MatMul(w) ──► y          after    one_x ──► MatMul(w) ──► one_y
                                                      two_x ──► MatMul(w) ──► two_y

Matching asks of a node before whether another node does its work already, and whether its value is still there. Both
copies would answer for each other, and what is only half known of one would be decided by what is known of the other.
Parts of a graph that have nothing but constants in common are copies if they take and return the same. Copies that read
the same inputs are told apart by what they return; work that they share is looked at in each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from modelexport.graph.algorithms import UnionFind, backward_slice
from modelexport.graph.index import MAIN, Graph, Node
from modelexport.graph.operators import is_random
from modelexport.record.lineage import Consistency, Lineage, Link, NodeOverlap


def split_copies(before: Graph, after: Graph) -> list[Graph]:
    """The copies of one graph that another one holds, the first with all else; the whole if there are none."""
    parts = _find_independent_parts(after)
    if len(parts) == 1:
        copies = _find_joined_copies(after, before)
    elif len(_find_independent_parts(before)) > 1:
        return [after]
    else:
        named = [part for part in parts if _is_named_copy(part, before)]
        copies = named if len(named) > 1 else _find_equal_parts(parts, before)
    if not copies:
        return [after]
    others = frozenset[str]().union(*map(_node_keys, copies[1:])).difference(_node_keys(copies[0]))
    return [_cut_part(after, [node.key for node in after.nodes if node.key not in others]), *copies[1:]]


def _node_keys(graph: Graph) -> Iterator[str]:
    return (node.key for node in graph.nodes)


def _find_independent_parts(graph: Graph) -> list[Graph]:
    """What is computed from different inputs. Work on constants goes to each part that needs it; that of no other is
    not looked at."""
    varying = _find_varying(graph)
    joined: UnionFind[str] = UnionFind()
    for node in graph.nodes:
        values = [value for value in (*node.inputs, *node.outputs) if value in varying]
        # What is in a body belongs to the node that runs it.
        values += [value for owner in graph.enclosing_nodes(node) for value in owner.outputs if value]
        joined.join_all(values)
    returned = [[value for value in group if value in graph.outputs] for group in joined.groups()]
    ends = [[graph.producers[value] for value in group if value in graph.producers] for group in returned]
    return [_cut_part(graph, _find_needed(graph, group)) for group in ends if group]


def _find_varying(graph: Graph) -> Collection[str]:
    """Values that are not computed from constants alone."""
    varying = set(graph.fed_inputs)
    for node in graph.running_order:
        holds_bodies = node.key in graph.subgraphs or node.graph != MAIN
        if holds_bodies or is_random(node) or not varying.isdisjoint(node.inputs):
            varying.update(filter(None, node.outputs))
    return varying


def _find_needed(graph: Graph, ends: Iterable[Node]) -> frozenset[str]:
    """The keys of all nodes that some nodes are computed from, bodies included."""

    def step(node: Node) -> Iterator[Node]:
        yield from graph.predecessors(node)
        for member in graph.subgraph_nodes(node):
            yield from graph.predecessors(member)
            yield member

    return frozenset(node.key for node in backward_slice(ends, step))


def _cut_part(graph: Graph, keys: Collection[str]) -> Graph:
    """The graph with some of its nodes alone. What these read stays, and so do functions, which anybody may call."""
    functions = graph.body_outputs.keys() - {MAIN} - graph.body_owner.keys()
    nodes = tuple(node for node in graph.nodes if node.key in keys or node.graph in functions)
    kept = {node.key for node in nodes}
    read = {value for node in nodes for value in node.inputs}
    made = {value for node in nodes for value in node.outputs}
    bodies = {body for body, owner in graph.body_owner.items() if owner in kept}
    graphs = {MAIN, *functions, *bodies}
    outputs = tuple(value for value in graph.outputs if value in made)
    inputs = tuple(value for value in graph.inputs if value in read)
    return replace(
        graph,
        nodes=nodes,
        inputs=inputs,
        outputs=outputs,
        initializers={name: tensor for name, tensor in graph.initializers.items() if name in read},
        body_owner={body: owner for body, owner in graph.body_owner.items() if body in bodies},
        body_outputs={**_keep(graph.body_outputs, graphs), MAIN: outputs},
        body_inputs={**_keep(graph.body_inputs, graphs), MAIN: inputs},
    )


def _keep(values: Mapping[str, tuple[str, ...]], graphs: Collection[str]) -> dict[str, tuple[str, ...]]:
    return {graph_id: names for graph_id, names in values.items() if graph_id in graphs}


def _is_named_copy(part: Graph, before: Graph) -> bool:
    """Whether inputs and outputs of a part have the names of those before, behind one prefix or none."""
    pairs = [(value, before.fed_inputs) for value in part.fed_inputs]
    pairs += [(value, before.outputs) for value in part.outputs]
    first = part.outputs[0]
    prefixes = [first.removesuffix(origin) for origin in before.outputs if first.endswith(origin)]
    return any(
        all(value.startswith(prefix) and value.removeprefix(prefix) in origins for value, origins in pairs)
        for prefix in prefixes
    )


def _find_equal_parts(parts: Iterable[Graph], before: Graph) -> list[Graph]:
    """Parts that take and return as much as the graph before, and are made of the same operators; none of a single
    one, which may be another model beside it."""
    interface = len(before.fed_inputs), len(before.outputs)
    fitting = [part for part in parts if (len(part.fed_inputs), len(part.outputs)) == interface]
    operators = [Counter(node.operator for node in part.nodes) for part in fitting]
    return [part for part, own in zip(fitting, operators, strict=True) if operators.count(own) > 1]


def _find_joined_copies(after: Graph, before: Graph) -> list[Graph]:
    """Copies that read the same inputs: they return the same under names with other prefixes, or in the same order.

    before    x ──► MatMul(w) ──► y          after    x ──► MatMul(w) ──► one_y, x ──► MatMul(w) ──► two_y
    """
    named = _group_by_prefix(after.outputs, before.outputs)
    count = len(before.outputs)
    in_order = [after.outputs[start : start + count] for start in range(0, len(after.outputs), count or 1)]
    groups = named if len(named) > 1 else in_order
    if len(groups) == 1 or len(groups[-1]) < count or not all(value in after.producers for value in after.outputs):
        return []
    ends = ([after.producers[value] for value in group] for group in groups)
    parts = [_cut_part(after, _find_needed(after, group)) for group in ends]
    users = Counter(key for part in parts for key in _node_keys(part))
    # What returns something from the middle of the graph beside its result has no work of its own to do for that.
    own = [sum(users[key] == 1 for key in _node_keys(part)) for part in parts]
    if any(2 * mine < len(part.nodes) for mine, part in zip(own, parts, strict=True)):
        return []
    operators = [Counter(node.operator for node in part.nodes) for part in parts]
    return parts if groups is named or operators.count(operators[0]) == len(parts) else []


def _group_by_prefix(values: Sequence[str], origins: Sequence[str]) -> list[list[str]]:
    """Values that are called as others behind one prefix, for each prefix of which there are all of them."""
    prefixes = [value.removesuffix(origins[0]) for value in values if value.endswith(origins[0])] if origins else []
    groups = ([prefix + origin for origin in origins] for prefix in prefixes)
    return [group for group in groups if set(group) <= set(values)]


def join_lineages(lineages: Sequence[Lineage], overlap: NodeOverlap) -> Lineage:
    """The lineage of a graph from those of its copies. Work on constants that copies share has one link in each."""
    nodes: dict[str, Link] = {}
    for lineage in lineages:
        for key, link in lineage.nodes.items():
            if key not in nodes or not nodes[key].sources:
                nodes[key] = link
    return Lineage(
        nodes,
        _join_mappings([lineage.initializers for lineage in lineages]),
        _join_mappings([lineage.stands_for for lineage in lineages]),
        _join_consistency([lineage.consistency for lineage in lineages]),
        overlap,
    )


_Named = TypeVar("_Named")


def _join_mappings(mappings: Iterable[Mapping[str, _Named]]) -> dict[str, _Named]:
    """What was said first of each name."""
    joined: dict[str, _Named] = {}
    for mapping in mappings:
        joined = {**mapping, **joined}
    return joined


def _join_consistency(parts: Sequence[Consistency]) -> Consistency:
    """What is gone from one copy and lives on in another was not needed there, or nobody knows where it is."""
    gone = [{*part.folded, *part.removed, *part.unexplained} for part in parts]
    everywhere = set.intersection(*gone)
    unexplained = dict.fromkeys(key for part in parts for key in part.unexplained)
    folded = dict.fromkeys(key for part in parts for key in part.folded if key in everywhere - unexplained.keys())
    removed = dict.fromkeys(
        key for part in parts for key in part.removed if key in everywhere - unexplained.keys() - folded.keys()
    )
    return Consistency(
        parts[0].nodes,
        tuple(folded),
        tuple(removed),
        tuple(unexplained),
        tuple(edge for part in parts for edge in part.disorder),
        tuple(key for part in parts for key in part.strayed),
    )
