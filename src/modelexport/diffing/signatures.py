"""Numbers for what a node computes and for what becomes of it: equal in both graphs if it is the same, names aside."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from modelexport.diffing.flow import COMMUTATIVE, Constant, Flow, operator_of
from modelexport.graph.index import MAIN, Node

_Seen = Callable[[Constant], object]


class Numbers:
    """A number for each description, the same in both graphs."""

    def __init__(self) -> None:
        self._known: dict[object, int] = {}

    def __call__(self, description: object) -> int:
        return self._known.setdefault(description, len(self._known))


def by_content(constant: Constant) -> object:
    """What a constant holds; where that is not to be read, what room it takes."""
    if constant.digest is None:
        return constant.dtype, constant.shape
    return constant.digest


def by_shape(constant: Constant) -> object:
    """The content of what says how a node works; of weights, what room they take."""
    if constant.small and constant.digest is not None:
        return constant.digest
    return constant.dtype, constant.shape


class Signatures:
    """
    own   by the key of a node: its operator, attributes and constants
    down  by value: what is computed there, from the inputs of the model on
    up    by the key of a node: what is made of its results, up to the outputs of the model
    """

    def __init__(self, flow: Flow, numbers: Numbers, seen: _Seen, ends: Mapping[str, object]) -> None:
        """ends  by inputs and outputs (`i:name`, `o:name`): what is the same in both models for those that are"""
        self.flow, self._numbers, self._seen, self._ends = flow, numbers, seen, ends
        self.own = {node.key: self._own(node) for node in flow.order}
        self.down = self._down()
        self.up = self._up()

    def of_value(self, node: Node) -> int:
        """What a node computes."""
        first = next((value for value in node.outputs if value), None)
        return self._numbers(("idle", node.key)) if first is None else self.down[first]

    def readers(self, node: Node) -> int:
        """Who reads what a node makes, in whatever place."""
        uses = (use.reader.key for value in node.outputs for use in self.flow.uses.get(value, ()))
        return self._numbers(("readers", tuple(sorted((self.own[key], self.up[key]) for key in uses))))

    def _own(self, node: Node) -> int:
        constants = [(place, self._seen(constant)) for place, constant in self.flow.read_constants(node)]
        if node.op_type in COMMUTATIVE:
            constants = [(0, self._seen(constant)) for _, constant in self.flow.read_constants(node)]
            constants.sort(key=repr)
        return self._numbers(("own", operator_of(node), node.attributes, tuple(constants)))

    def _down(self) -> dict[str, int]:
        graph = self.flow.graph
        found: dict[str, int] = {}
        for name in (*graph.inputs, *graph.takes.get(MAIN, ())):
            found[name] = self._numbers(("input", self._ends.get(f"i:{name}", name)))
        self._take_all(found)
        for node in self.flow.order:
            read = [self._input(value, found) for value in node.inputs if value not in self.flow.constants]
            if node.op_type in COMMUTATIVE:
                read.sort()
            inside = tuple(
                self._input(value, found) for body in graph.bodies.get(node.key, ()) for value in graph.yields[body]
            )
            description = (self.own[node.key], tuple(read), inside)
            for place, value in enumerate(node.outputs):
                if value:
                    found[value] = self._numbers(("made", description, place))
        return found

    def _take_all(self, found: dict[str, int]) -> None:
        """What bodies are given is known by its place: the node around them tells what that is."""
        for body, owner in self.flow.graph.owners.items():
            if owner in self.flow.by_key:
                around = self.own[owner]
                for place, value in enumerate(self.flow.graph.takes[body]):
                    found[value] = self._numbers(("take", around, body.removeprefix(owner), place))

    def _input(self, value: str, found: Mapping[str, int]) -> int:
        if value in found:
            return found[value]
        if value in self.flow.constants:
            return self._numbers(("constant", self._seen(self.flow.constants[value])))
        return self._numbers("unknown" if value else "nothing")

    def _up(self) -> dict[str, int]:
        flow, graph = self.flow, self.flow.graph
        returned = self._returned()
        found: dict[str, int] = {}
        for node in reversed(flow.order):
            uses = []
            for place, value in enumerate(node.outputs):
                uses += [(place, 0, end) for end in returned.get(value, ())] if value else []
                for use in flow.uses.get(value, ()):
                    where = 0 if use.reader.op_type in COMMUTATIVE else use.place
                    uses.append((place, 1 + where, self._numbers((self.own[use.reader.key], found[use.reader.key]))))
            owner = graph.owners.get(node.graph)
            if owner is not None and owner in found:
                body = node.graph.removeprefix(owner)
                for place, value in enumerate(graph.yields[node.graph]):
                    if value and value in node.outputs:
                        uses.append(
                            (node.outputs.index(value), -1, self._numbers(("yield", body, place, found[owner])))
                        )
            found[node.key] = self._numbers(("up", tuple(sorted(uses))))
        return found

    def _returned(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for place, value in enumerate(self.flow.graph.outputs):
            number = self._numbers(("output", self._ends.get(f"o:{value}", f"{place} {value}")))
            found.setdefault(value, []).append(number)
        return found


def neighbourhoods(flow: Flow, numbers: Numbers, own: Mapping[str, int], steps: int) -> list[dict[str, int]]:
    """By the key of a node, for 0, 1, 2 … steps: a number for the node with all that is at most so many steps away."""
    found = [dict(own)]
    for _ in range(steps):
        near = found[-1]
        found.append({node.key: numbers(("near", near[node.key], _around(node, flow, near))) for node in flow.order})
    return found


def _around(node: Node, flow: Flow, near: Mapping[str, int]) -> tuple[object, ...]:
    above = [
        (0 if node.op_type in COMMUTATIVE else place, near[flow.producers[value][0].key])
        for place, value in enumerate(node.inputs)
        if value in flow.producers
    ]
    below = [
        (place, 0 if use.reader.op_type in COMMUTATIVE else use.place, near[use.reader.key])
        for place, value in enumerate(node.outputs)
        for use in flow.uses.get(value, ())
    ]
    return tuple(sorted(above)), tuple(sorted(below))
