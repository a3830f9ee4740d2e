"""Where graphs begin and end: what they are given and what they return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from modelexport.graph.index import MAIN, Node
from modelexport.lineage.classes import NOTHING, Classes
from modelexport.lineage.names import NameLinker
from modelexport.lineage.operators import family, is_passing


class EndLinker:
    def __init__(self, before: Classes, after: Classes, names: NameLinker) -> None:
        self._before, self._after = before, after
        self._names = names

    def pairs(self) -> Iterator[tuple[int, int]]:
        before, after = self._before.graph, self._after.graph
        yield from self._paired(after.inputs, before.inputs)
        yield from self._paired(after.outputs, before.outputs)
        for graph_id in after.yields:
            if graph_id != MAIN and graph_id not in after.owners and graph_id in before.yields:
                yield from self._after.ends(graph_id, self._before, graph_id)  # functions of one name

    def _paired(self, mine: Sequence[str], theirs: Sequence[str]) -> Iterator[tuple[int, int]]:
        """By name; where as many are left over on both sides, those in their order."""
        before, after = self._before, self._after
        known = {value: self._names.known(value) for value in mine}
        yield from ((after.of.get(value, NOTHING), other) for value, other in known.items())
        left = [value for value, other in known.items() if other == NOTHING]
        spare = [value for value in theirs if before.of.get(value, NOTHING) not in known.values()]
        if len(mine) == len(theirs):
            # A name that stood for an inner value before may stand for what is returned now, if little lay between.
            for value, other in zip(mine, theirs, strict=True):
                near = before.made_from(before.of.get(other, NOTHING))
                if other in spare and value not in left and known[value] in near:
                    yield after.of.get(value, NOTHING), before.of.get(other, NOTHING)
        if len(left) == len(spare):
            for value, other in zip(left, spare, strict=True):
                if _may_be_same(after.graph.producers.get(value), before.graph.producers.get(other)):
                    yield after.of.get(value, NOTHING), before.of.get(other, NOTHING)


def _may_be_same(node: Node | None, origin: Node | None) -> bool:
    """Whether two results can be one: an operator may be fused with others, but does not become another plain one."""
    if node is None or origin is None or node.op_type == origin.op_type:
        return True
    plain = all(one.op_type == family(one.op_type) and not is_passing(one) for one in (node, origin))
    return not plain
