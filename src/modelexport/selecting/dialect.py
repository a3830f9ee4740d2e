"""What a dialect is, for whoever writes a selection in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import MappingProxyType

import onnx

from modelexport.graph.index import Graph, Node


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
        found = {node.key: node for group in self.groups for node in group}
        return tuple(sorted(found.values(), key=lambda node: node.position))


@dataclass(frozen=True)
class Text:
    """A selection in a dialect; `notes` say what the tool is not told, and why that is right."""

    text: str
    notes: tuple[str, ...] = ()


def _any_name(name: str) -> str:  # noqa: ARG001 - a dialect that takes all names looks at none
    return ""


def _no_more(node: Node) -> tuple[str, ...]:  # noqa: ARG001 - likewise
    return ()


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
    refuses: Callable[[str], str] = _any_name
    further: Callable[[Node], tuple[str, ...]] = _no_more
    grouped: bool = False
    annotate: Callable[[onnx.ModelProto, Selection, Settings], None] | None = None
    takes: frozenset[str] = frozenset()
