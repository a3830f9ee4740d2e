"""What flows between the parts of a module call."""

from __future__ import annotations

from tests.support.small_file import SmallFile, credited

from modelexport.graph.index import edges_of, index_model
from modelexport.record.hierarchy import ModuleCall
from modelexport.show.page.flow import CallFlow, Entering, Inner, Leaving, Own, flows_of


def flows(small: SmallFile) -> dict[str, CallFlow]:
    found = flows_of(small.provenance(), edges_of(index_model(small.proto())))
    return {str(call): flow for call, flow in found.items()}


def inner(path: str) -> Inner:
    return Inner(ModuleCall.parse(path))


def test_the_model_sees_calls_its_own_nodes_and_its_ends(small: SmallFile) -> None:
    root = flows(small)[""]
    assert list(root.boxes) == [inner("emb"), inner("layers.0"), inner("layers.1"), Own("y")]
    assert root.edges == {
        (Entering("ids"), inner("emb")): ["ids"],
        (inner("emb"), inner("layers.0")): ["e"],
        (inner("emb"), Own("y")): ["e"],
        (inner("layers.0"), inner("layers.1")): ["r0"],
        (inner("layers.1"), Own("y")): ["r1"],
        (Own("y"), Leaving("y")): ["y"],
    }


def test_a_call_sees_what_enters_and_leaves_it(small: SmallFile) -> None:
    block = flows(small)["layers.0"]
    assert (block.enters, block.leaves) == (["e"], ["r0"])
    assert list(block.edges) == [
        (Entering("e"), inner("layers.0.fc")),
        (inner("layers.0.fc"), Own("r0")),
        (Own("r0"), Leaving("r0")),
    ]


def test_a_container_that_never_runs_has_no_flow(small: SmallFile) -> None:
    assert "layers" not in flows(small)


def test_a_node_of_several_modules_is_one_of_the_module_around_them(small: SmallFile) -> None:
    shared = small.but(r0=credited("layers.0", "layers.1"))
    assert Own("r0") in flows(shared)[""].boxes


def test_weights_do_not_flow(small: SmallFile) -> None:
    assert not [pair for flow in flows(small).values() for pair in flow.edges if pair[0] == Entering("emb.weight")]
