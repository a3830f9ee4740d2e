"""The work of reading structure grows in proportion to the graph, whatever its shape; nothing recurses."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, product

import pytest
from tests.support.growing_graphs import calls_made
from tests.support.nameless_nets import Net, layers

from modelexport.attribute.roles.value_origins import trace_flow
from modelexport.attribute.sources.structure import read_structure
from modelexport.graph.index import index_model


def _decoder(net: Net, count: int) -> str:
    value = net.embed()
    for _ in range(count // 10):
        value = net.pre_norm_layer(value)
    return net.linear(value)


def _products_in_a_row(net: Net, count: int) -> str:
    """Behind blocks of two products, with and without a shortcut."""
    value = "x"
    for number in (2, 2, count):
        for _ in range(number):
            value = net.linear(value)
        value = net.add("Add", value, net.linear(net.linear(value)))
    return value


def _wide_concat(net: Net, count: int) -> str:
    value = net.embed()
    return net.add("Concat", value, *(net.add("Relu", value) for _ in range(count)), axis=0)


def _wide_sum(net: Net, count: int) -> str:
    value = net.embed()
    return net.add("Sum", *(net.linear(value) for _ in range(count)), value)


def _sums_of_a_row(net: Net, count: int) -> str:
    """Every value of a row is added to its beginning, all at once."""
    value, made = net.linear("x"), list[str]()
    for _ in range(count):
        made.append(net.add("Relu", made[-1] if made else net.linear(value)))
    return net.add("Sum", value, *made)


def _scaled_in_a_row(net: Net, count: int) -> str:
    value = net.linear("x")
    for _ in range(count):
        value = net.add("Add", value, net.weight(1))
    return net.add("Relu", value)


def _views_in_a_row(net: Net, count: int) -> str:
    start = value = net.linear("x")
    for _ in range(count // 2):
        start = net.add("Identity", start)
    for _ in range(count // 2):
        value = net.add("Add", value, start)
    return net.add("Relu", value)


def _values_open_for_long(net: Net, count: int) -> str:
    """Every value of a row is read once more at the end: each of them may have been the start of a shortcut."""
    values = ["x"]
    for _ in range(count):
        values.append(net.linear(values[-1]))
    total = values[-1]
    for value in values[1:-1]:
        total = net.add("Concat", total, value, axis=1)
    return total


def _many_kinds_of_blocks(net: Net, count: int) -> str:
    """Twice each, so that every kind is a run of its own."""
    value = "x"
    for kinds in islice(product(range(4), repeat=4), count // 10):
        for _ in range(2):
            branch = value
            for kind in kinds:
                size = (1, 3)[kind % 2]
                branch = net.add(("Conv", "ConvTranspose")[kind // 2], branch, net.weight(8, 8, size, size))
            value = net.add("Add", branch, value)
    return value


def _many_readers_of_the_end(net: Net, count: int) -> str:
    value = net.embed()
    for _ in range(4):
        end = net.add("Add", net.feed_forward(value), value)
        value = net.add("Relu", end)
    return net.add("Concat", *(net.add("Sigmoid", end) for _ in range(count)), axis=0)


def _work(build: Callable[[Net, int], str], count: int) -> int:
    net = Net()
    graph = index_model(net.proto(build(net, count)))
    flow = trace_flow(graph)
    return calls_made(lambda: read_structure(graph, flow))


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (_decoder, 800),
        (_products_in_a_row, 1000),
        (_wide_concat, 2000),
        (_wide_sum, 1000),
        (_sums_of_a_row, 1000),
        (_scaled_in_a_row, 1000),
        (_views_in_a_row, 1000),
        (_values_open_for_long, 600),
        (_many_kinds_of_blocks, 800),
        (_many_readers_of_the_end, 1000),
    ],
    ids=lambda item: getattr(item, "__name__", str(item)).strip("_"),
)
def test_twice_the_nodes_are_about_twice_the_work(build: Callable[[Net, int], str], count: int) -> None:
    assert _work(build, count) < 2.5 * _work(build, count // 2)


def test_thousands_of_products_in_a_row_are_taken_apart_without_recursion() -> None:
    net = Net()
    paths = net.paths(_products_in_a_row(net, 5000))
    assert len(layers(paths)) == 2505  # 1, 1 and 2,500 without a shortcut, 3 with one
