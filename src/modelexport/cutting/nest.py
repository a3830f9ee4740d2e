"""Nodes with everything that is in their bodies: what is cut is a node as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from modelexport.graph.index import KEY_SEPARATOR, MAIN, Graph, Node


class Nest:
    """A graph, asked for whole nodes. What lies in a body belongs to the node that holds the body."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._members: dict[str, list[Node]] = {}
        for node in graph.nodes:
            self._members.setdefault(node.graph, []).append(node)

    def inner(self, node: Node) -> Iterator[Node]:
        """The nodes in a node's bodies, however deep."""
        waiting = list(self.graph.bodies.get(node.key, ()))
        while waiting:
            for member in self._members.get(waiting.pop(0), ()):
                yield member
                waiting += self.graph.bodies.get(member.key, ())

    def reads(self, node: Node) -> tuple[str, ...]:
        """The values that a node, or something in its bodies, reads from outside of it."""
        bodies = self.graph.bodies.get(node.key, ())
        if not bodies:
            return tuple(dict.fromkeys(filter(None, node.inputs)))
        inner = list(self.inner(node))
        below = [*bodies, *(body for one in inner for body in self.graph.bodies.get(one.key, ()))]
        read = [*node.inputs, *(value for one in inner for value in one.inputs)]
        read += [value for body in below for value in self.graph.yields[body]]
        prefixes = tuple(f"{body}{KEY_SEPARATOR}" for body in bodies)
        return tuple(dict.fromkeys(value for value in read if value and not value.startswith(prefixes)))

    def holders(self, node: Node) -> Iterator[Node]:
        """The nodes in whose bodies a node is, innermost first."""
        holder = self.graph.by_key.get(self.graph.owners.get(node.graph, ""))
        while holder is not None:
            yield holder
            holder = self.graph.by_key.get(self.graph.owners.get(holder.graph, ""))

    def scope(self, graph_id: str) -> tuple[str, ...]:
        """A graph and the graphs around it, innermost first; the main graph or a function is the last."""
        found = [graph_id]
        while found[-1] in self.graph.owners:
            found.append(self.graph.by_key[self.graph.owners[found[-1]]].graph)
        return tuple(found)

    def is_in_function(self, node: Node) -> bool:
        return self.scope(node.graph)[-1] != MAIN

    def outermost(self, keys: Iterable[str]) -> frozenset[str]:
        """Those of the nodes that are in no body of another of them."""
        chosen = frozenset(keys)
        by_key = self.graph.by_key
        return frozenset(key for key in chosen if not any(holder.key in chosen for holder in self.holders(by_key[key])))

    def with_inner(self, keys: Iterable[str]) -> frozenset[str]:
        """The nodes and all that is in their bodies."""
        by_key = self.graph.by_key
        return frozenset(key for one in keys for key in (one, *(node.key for node in self.inner(by_key[one]))))

    @cached_property
    def returned_by(self) -> dict[str, list[str]]:
        """By value: the keys of the nodes whose body returns it."""
        found: dict[str, list[str]] = {}
        for body, holder in self.graph.owners.items():
            for value in filter(None, self.graph.yields[body]):
                found.setdefault(value, []).append(holder)
        return found

    def readers(self, value: str) -> Iterator[Node]:
        """Every node that reads a value, wherever it is, and those whose body returns it."""
        yield from self.graph.consumers.get(value, ())
        yield from (self.graph.by_key[key] for key in self.returned_by.get(value, ()))
