"""The first proved nodes on the ways up and down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import onnx
from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import body, graph, node
from tests.support.proof_stories import dags

from modelexport.graph.index import Graph, Node, index_model
from modelexport.record.hierarchy import ModuleCall
from modelexport.verify.evidence import Frontier, nearest_proved_above, nearest_proved_below

Step = Callable[[Node], Iterable[Node]]


def proved(**calls: str) -> dict[str, Frontier]:
    return {key: frozenset(map(ModuleCall.parse, text.split())) for key, text in calls.items()}


def written(found: Mapping[str, Frontier]) -> dict[str, str]:
    return {key: " ".join(sorted(map(str, calls))) for key, calls in found.items()}


def ways(start: Node, step: Step) -> Iterator[list[Node]]:
    """Every way from a node to an end of the graph, without the node itself."""
    nexts = list(step(start))
    if not nexts:
        yield []
    for one in nexts:
        for rest in ways(one, step):
            yield [one, *rest]


def first_on_every_way(start: Node, step: Step, known: Mapping[str, Frontier]) -> Frontier:
    firsts = (next((known[one.key] for one in way if one.key in known), frozenset()) for way in ways(start, step))
    return frozenset[ModuleCall]().union(*firsts)


@given(dags(), st.data())
def test_a_frontier_is_what_every_way_meets_first(proto: onnx.ModelProto, data: st.DataObject) -> None:
    found: Graph = index_model(proto)
    call = st.builds(ModuleCall, st.sampled_from("abc"), st.integers(0, 1))
    keys = st.sampled_from([one.key for one in found.nodes])
    known = data.draw(st.dictionaries(keys, st.frozensets(call, min_size=1, max_size=2)))
    for step, frontiers in (
        (found.successors, nearest_proved_below(found, known)),
        (found.predecessors, nearest_proved_above(found, known)),
    ):
        assert frontiers == {one.key: first_on_every_way(one, step, known) for one in found.nodes}


def test_a_proved_node_hides_what_is_behind_it() -> None:
    chain = graph(node("Sin", "x", "a"), node("Cos", "a", "b"), node("Neg", "b", "c"), node("Abs", "c", "y"))
    known = proved(a="one", c="two", y="three")
    assert written(nearest_proved_below(chain, known)) == {"a": "two", "b": "two", "c": "three", "y": ""}
    assert written(nearest_proved_above(chain, known)) == {"a": "", "b": "one", "c": "one", "y": "two"}


def test_ways_come_together() -> None:
    fork = graph(node("Sin", "x", "a"), node("Cos", "a", "b"), node("Neg", "a", "c"), node("Add", "b c", "y"))
    assert written(nearest_proved_below(fork, proved(b="one", c="two two#1")))["a"] == "one two two#1"
    assert written(nearest_proved_below(fork, proved(b="one", y="two")))["a"] == "one two"
    assert written(nearest_proved_above(fork, proved(b="one", a="two")))["y"] == "one two"


def test_without_proved_nodes_there_is_no_frontier() -> None:
    chain = graph(node("Sin", "x", "a"), node("Cos", "a", "y"))
    assert written(nearest_proved_below(chain, {})) == written(nearest_proved_above(chain, {})) == {"a": "", "y": ""}


def _branching() -> Graph:
    inside = body(node("Sin", "h", "s"), node("Cos", "s", "t"), outputs="t")
    branch = node("If", "yes", "z", then_branch=inside, else_branch=inside)
    return graph(node("Abs", "x", "h"), branch, node("Neg", "z", "y"), inputs="x yes")


def test_a_body_sees_what_is_above_and_the_node_that_holds_it() -> None:
    found = _branching()
    inner = "z|then_branch|s"
    assert written(nearest_proved_above(found, proved(h="one")))[inner] == "one"
    assert written(nearest_proved_below(found, proved(z="two", y="three")))[inner] == "two"


def test_a_way_leads_out_of_a_body() -> None:
    assert written(nearest_proved_below(_branching(), proved(y="three")))["z|then_branch|s"] == "three"


def test_a_way_leads_out_of_a_body_in_a_body() -> None:
    inner = body(node("Sin", "h", "s"), outputs="s")
    nested = node("If", "yes", "t", then_branch=inner, else_branch=inner)
    outer = body(nested, node("Cos", "t", "u"), outputs="u")
    branch = node("If", "yes", "z", then_branch=outer, else_branch=outer)
    found = graph(node("Abs", "x", "h"), branch, node("Neg", "z", "y"), inputs="x yes")
    deep = "z|then_branch|t|else_branch|s"
    assert written(nearest_proved_below(found, proved(y="three")))[deep] == "three"
    assert (
        written(nearest_proved_below(found, {"z|then_branch|u": proved(u="two")["u"], **proved(y="three")}))[deep]
        == "two"
    )
