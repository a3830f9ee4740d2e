"""Selection dialect: how nodes are written down for a tool, and whether that tool can be told about them at all.

A selection is refused, with the reason, if the tool does not see the graph that a node is in (a subgraph of If, a
function), if it tells nodes by name and two have the same one, or if a name means something else in its syntax.

    selected   MatMul_1 of layer.0           ort-exclude   ["MatMul_1"]
    refused    a second node is called MatMul_1, and it is not selected: the tool would leave both in float
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import MappingProxyType

import onnx

from modelexport.errors import SelectionInexpressible, some_of
from modelexport.graph.functions import root_of
from modelexport.graph.index import MAIN, Graph, Node


class Sight(Enum):
    """Whose nodes a tool knows: those of the main graph, of bodies of If and Loop as well, or of functions too."""

    MAIN = "the main graph"
    BODIES = "the main graph and the bodies in it"
    ALL = "every graph"


@dataclass(frozen=True)
class Settings:
    """What some tools want to know beside the nodes.

    precision  that of the layers
    devices    one for each group of nodes, or one for all of them
    labels     what the groups are to be called
    """

    precision: str = ""
    devices: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Selection:
    """
    groups  the nodes of each query
    types   of the main graph's values, as ONNX numbers them, where they are known
    """

    graph: Graph
    groups: tuple[tuple[Node, ...], ...]
    types: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All of them, each once, in the order of the file."""
        nodes = {node.key: node for group in self.groups for node in group}
        return tuple(sorted(nodes.values(), key=lambda node: node.position))


@dataclass(frozen=True)
class Text:
    """A selection in a dialect; `notes` say what the tool is not told, and why that is right."""

    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dialect:
    """
    write     the selection as a text; raises UserError where the tool cannot be told so
    sight     whose nodes the tool knows
    by_name   whether it is told their names
    refuses   why a name cannot be written; empty if it can
    further   names under which the tool will know a node besides its own
    grouped   whether it matters which query found a node
    annotate  writes the selection into a model, for a tool that looks for it there
    takes     the names of the settings that mean something here
    """

    name: str
    does: str
    write: Callable[[Selection, Settings], Text]
    sight: Sight
    by_name: bool = True
    refuses: Callable[[str], str] = lambda _: ""
    further: Callable[[Node], tuple[str, ...]] = lambda _: ()
    grouped: bool = False
    annotate: Callable[[onnx.ModelProto, Selection, Settings], None] | None = None
    takes: frozenset[str] = frozenset()


# Nodes that a message names: enough to see what they have in common.
_SHOWN = 5
_FLATTEN = "Flatten the file first: modelexport flatten FILE -o FLAT; or leave them out of the query."


def check(selection: Selection, dialect: Dialect) -> None:
    """Raises SelectionInexpressible, with the nodes that are in the way and what can be done about them."""
    if dialect.grouped:
        _check_groups(selection, dialect)
    _check_sight(selection, dialect)
    _check_calls(selection, dialect)
    if dialect.by_name:
        problems = dict(name_problems(selection, dialect))
        if problems:
            raise SelectionInexpressible(
                f"{dialect.name} tells nodes by name, which does not work for {_some(problems.values())}",
                f"Write a copy with names that do: --named FILE.onnx; what comes out is then for that file. "
                f"Nothing was written for the {len(selection.nodes)} selected nodes.",
            )


def name_problems(selection: Selection, dialect: Dialect) -> Iterator[tuple[str, str]]:
    """By the key of a node that cannot be told by its name: how it is called, and why that is no use."""
    # Without groups, all that is selected is one: two selected nodes may share a name.
    groups = selection.groups if dialect.grouped else (selection.nodes,)
    group_of = {node.key: number for number, group in enumerate(groups) for node in group}
    bearers: dict[str, list[Node]] = {}
    for node in selection.graph.nodes:
        bearers.setdefault(node.name, []).append(node)
    for node in selection.nodes:
        reason = _reason(node, bearers, group_of, dialect)
        if reason:
            yield node.key, f"{node.name or node.key!r} ({reason})"


def _reason(node: Node, bearers: dict[str, list[Node]], group_of: dict[str, int], dialect: Dialect) -> str:
    if not node.name:
        return "it has no name; this is its output"
    group = group_of[node.key]
    for name in (node.name, *dialect.further(node)):
        count = sum(group_of.get(bearer.key) != group for bearer in bearers.get(name, ()))
        if count:
            namesakes = "another node" if count == 1 else f"{count} other nodes"
            return f"not selected with it, and called {name} as well: {namesakes}"
    return dialect.refuses(node.name)


def _check_groups(selection: Selection, dialect: Dialect) -> None:
    counts = Counter(node.key for group in selection.groups for node in group)
    twice = [_called(node) for node in selection.nodes if counts[node.key] > 1]
    if twice:
        raise SelectionInexpressible(
            f"{dialect.name} puts every node into one group; more than one query selects {_some(twice)}",
            "Narrow one of the queries: QUERY & !(OTHER).",
        )


def _check_sight(selection: Selection, dialect: Dialect) -> None:
    graph = selection.graph
    chosen = {node.key for node in selection.nodes}
    unseen = [node for node in selection.nodes if not _is_seen(node, selection, dialect, chosen)]
    if not unseen:
        return
    # A graph is under the main graph as a body, however deep, or under a function.
    in_functions = [node for node in unseen if root_of(node.graph, graph) != MAIN]
    if in_functions:
        raise SelectionInexpressible(
            f"{dialect.name} does not look into functions, where {_some(map(_called, in_functions))} are", _FLATTEN
        )
    owners = dict.fromkeys(_called(graph.by_key[_outermost(node, selection)]) for node in unseen)
    how = "as well" if dialect.grouped else "instead"
    raise SelectionInexpressible(
        f"{dialect.name} only knows the nodes of {dialect.sight.value}; {_some(map(_called, unseen))} are inside of "
        f"another node",
        f"Select the node around them {how} ({_some(owners)}), or leave them out of the query.",
    )


def _check_calls(selection: Selection, dialect: Dialect) -> None:
    """A call goes where it is put; but a tool that changes nodes does so in the function, under the names there."""
    if dialect.grouped or dialect.sight is Sight.ALL:
        return
    calls = [_called(node) for node in selection.nodes if node.function in selection.graph.body_outputs]
    if calls:
        verb = "is a call of one" if len(calls) == 1 else "are calls of them"
        raise SelectionInexpressible(
            f"{dialect.name} does not look into functions, and {_some(calls)} {verb}", _FLATTEN
        )


def _is_seen(node: Node, selection: Selection, dialect: Dialect, chosen: set[str]) -> bool:
    """A body goes where its node goes: for a tool that does not look inside, naming the node is enough."""
    if node.graph == MAIN or dialect.sight is Sight.ALL:
        return True
    if root_of(node.graph, selection.graph) != MAIN:
        return False
    return dialect.sight is Sight.BODIES or (dialect.grouped and _outermost(node, selection) in chosen)


def _outermost(node: Node, selection: Selection) -> str:
    return [node, *selection.graph.enclosing_nodes(node)][-1].key


def _called(node: Node) -> str:
    return repr(node.name or node.key)


def _some(names: Iterable[str]) -> str:
    return some_of(list(names), _SHOWN)
