"""Time to find a hierarchy: the graphs are named as they should be, and limits are kept or missed."""

from __future__ import annotations

import math
import sys

import pytest
from measure.anyfile.finding_time import NAMINGS, Timing, compose_table, make_layers, time_finding
from tests.support.children import run_child

from modelexport.attribute.sources.find import find_hierarchy
from modelexport.graph.index import index_model


@pytest.mark.parametrize(
    ("names", "source"), [("node names", "TorchScript node names"), ("parameter names", "parameter names")]
)
def test_modules_are_read_from_the_names_that_are_left(names: str, source: str) -> None:
    provenance = find_hierarchy(index_model(NAMINGS[names](make_layers(57))))
    assert provenance.origin.exporter == source
    assert "layers.2.query" in provenance.hierarchy.modules


def test_nothing_has_a_name_without_names() -> None:
    model = NAMINGS["no names"](make_layers(57))
    stored = [tensor.name for tensor in model.graph.initializer]
    assert not any(node.name for node in model.graph.node)
    assert not any("layers" in name for name in stored)


def test_naming_leaves_the_graph_as_it_is() -> None:
    model = make_layers(57)
    before = model.SerializeToString()
    shapes = {
        names: [(node.op_type, len(node.input)) for node in naming(model).graph.node]
        for names, naming in NAMINGS.items()
    }
    assert model.SerializeToString() == before
    assert len({tuple(shape) for shape in shapes.values()}) == 1
    assert len(model.graph.node) == 57


def test_both_times_are_taken() -> None:
    timings = time_finding("node names", (19, 38))
    assert [timing.nodes for timing in timings] == [19, 38]
    assert all(0 < timing.finding < math.inf and 0 < timing.analyzing < math.inf for timing in timings)


@pytest.mark.parametrize(
    ("small", "large", "analyzing", "holds"),
    [(1.0, 2.0, 2.0, True), (1.0, 2.5, 3.0, True), (1.0, 2.1, 2.0, False), (1.0, 2.6, 9.0, False)],
)
def test_limits(small: float, large: float, analyzing: float, holds: bool) -> None:
    table = compose_table([[Timing("n", 14000, "s", small, 9.0), Timing("n", 28000, "s", large, analyzing)]])
    assert table.holds is holds
    assert table.rows[1][-1] == ("yes" if holds else "no")


def test_torch_is_not_loaded() -> None:
    code = "import sys, measure.anyfile.finding_time, measure.anyfile.run_verbs; sys.exit('torch' in sys.modules)"
    assert run_child([sys.executable, "-c", code]).returncode == 0
