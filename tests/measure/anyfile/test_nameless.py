"""A file without names is the same graph, and its nodes can be traced back."""

from __future__ import annotations

from measure.anyfile.nameless import old_key, remove_names
from tests.support.building import body, model, node

from modelexport.graph.index import index_model


def test_every_name_is_gone_and_every_node_is_traced_back() -> None:
    branch = body(node("Relu", "a", "t"), outputs="t")
    proto = model(
        node("MatMul", "x encoder.weight", "a", name="/encoder/fc/MatMul"),
        node("If", "c", "y", then_branch=branch, else_branch=body(node("Neg", "a", "e"), outputs="e")),
        inputs="x c",
        weights=["encoder.weight"],
    )
    nameless, names = remove_names(proto)
    text = str(nameless)
    assert "encoder" not in text
    assert "MatMul" in text
    before, after = index_model(proto), index_model(nameless)
    assert {old_key(found.key, names): found.op_type for found in after.nodes} == {
        kept.key: kept.op_type for kept in before.nodes
    }


def test_nodes_are_in_another_order_in_which_they_can_run() -> None:
    proto = model(*(node("Relu", "x", f"r{number}") for number in range(20)), node("Neg", "r3", "y"), outputs="y")
    orders = set()
    for seed in range(3):
        nameless, names = remove_names(proto, seed)
        orders.add(tuple(names[made.output[0]] for made in nameless.graph.node))
    assert len(orders) == 3
    assert all(order.index("r3") < order.index("y") for order in orders)
