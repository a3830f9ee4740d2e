"""Regions of one pattern become calls of one function; one that does more calls the function of the smaller one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx
import pytest
from onnx import helper
from tests.support.building import provenance, tree
from tests.support.foldable_graphs import graph, layers, parse_nodes

from modelexport.errors import UnknownName, UserError
from modelexport.record.hierarchy import CallSite, ModuleCall
from modelexport.record.provenance import Provenance
from modelexport.record.results.files import ALONE, INTERLEAVED, SMALL
from modelexport.transform.fold.fold import fold_model
from modelexport.transform.fold.patterns import FoldRegion, RegionPatterns, find_subpattern
from modelexport.transform.fold.plan import FoldingPlan, list_hidden_values, list_levels, plan_folding
from modelexport.transform.fold.working_graph import WorkingGraph, list_fold_nodes


def regions(text: str, *members: str, kept: Sequence[str] = ()) -> list[FoldRegion]:
    """Regions of the nodes that make these values, each as `a b c`."""
    working = WorkingGraph(list_fold_nodes(parse_nodes(text)), kept)
    patterns = RegionPatterns(working)
    makers = [[working.maker(name) for name in names.split()] for names in members]
    return [
        patterns.build_region(ModuleCall(f"m{number}"), [item for item in items if item is not None])
        for number, items in enumerate(makers)
    ]


def test_names_do_not_go_into_a_pattern() -> None:
    one, other = regions("a=MatMul(x,w) b=Relu(a) c=MatMul(b,v) d=Relu(c) e=Abs(d)", "a b", "c d")
    assert one.rows == other.rows
    assert (one.formals, other.formals) == (("x", "w"), ("b", "v"))
    assert (one.results, other.results) == (("b",), ("d",))


def test_a_value_that_is_read_twice_is_one_formal() -> None:
    one, other = regions("a=Add(x,x) b=Neg(a) c=Add(b,x) d=Neg(c) e=Abs(d)", "a b", "c d")
    assert one.formals == ("x",)
    assert other.formals == ("b", "x")
    assert one.rows != other.rows


@pytest.mark.parametrize("second", ["c=Sub(b,v) d=Relu(c)", "c=Add(v,b) d=Abs(c)", "c=Add(b,v) d=Add(c,c)"])
def test_other_operators_or_edges_are_another_pattern(second: str) -> None:
    one, other = regions(f"a=Add(x,w) b=Relu(a) {second} e=Neg(d)", "a b", "c d")
    assert one.rows != other.rows


SMALL_LAYER = "a=Add(x,w) b=Relu(a) c=Exp(b) d=Mul(c,x)"


def test_a_region_that_does_more_contains_the_smaller_one() -> None:
    """The second layer works out `s`, which the first one is given."""
    second = "s=Neg(d) e=Add(d,s) f=Relu(e) g=Exp(f) h=Mul(g,d) end=Abs(h)"
    small, large = regions(f"{SMALL_LAYER} {second}", "a b c d", "s e f g h")
    assert large.formals == ("d",)
    found = find_subpattern(small, large)
    assert found is not None
    assert [large.rows[number][0] for number in found] == [row[0] for row in small.rows]


@pytest.mark.parametrize(
    "second",
    [
        "s=Neg(d) e=Add(d,s) f=Abs(e) g=Exp(f) h=Mul(g,d)",  # another operator
        "s=Neg(d) e=Add(d,s) f=Relu(e) g=Exp(f) h=Mul(g,e)",  # another edge
        "e=Add(d,w) f=Relu(e) s=Neg(f) g=Exp(s) h=Mul(g,d)",  # something in between
    ],
)
def test_a_region_that_does_something_else_does_not(second: str) -> None:
    members = " ".join(part.partition("=")[0] for part in second.split())
    small, large = regions(f"{SMALL_LAYER} {second} end=Abs(h)", "a b c d", members)
    assert find_subpattern(small, large) is None


def test_too_little_in_common_is_no_subpattern() -> None:
    """Four nodes of ten: a call of them would hide more than it shows."""
    more = " ".join(f"m{number}=Neg({f'm{number - 1}' if number else 'd'})" for number in range(6))
    second = f"{more} e=Add(d,m5) f=Relu(e) g=Exp(f) h=Mul(g,d)"
    members = " ".join(part.partition("=")[0] for part in second.split())
    small, large = regions(f"{SMALL_LAYER} {second} end=Abs(h)", "a b c d", members)
    assert find_subpattern(small, large) is None


def planned(text: str, owners: Mapping[str, str], classes: Mapping[str, str], *wanted: str) -> FoldingPlan:
    proto, record = tagged(text, owners, classes)
    outputs = [value.name for value in proto.graph.output]
    return plan_folding(list_fold_nodes(proto.graph.node), outputs, record, wanted)


def tagged(text: str, owners: Mapping[str, str], classes: Mapping[str, str]) -> tuple[onnx.ModelProto, Provenance]:
    nodes = parse_nodes(text)
    proto = graph(nodes, [nodes[-1].output[0]], {})
    return proto, provenance(proto, tree({"": "Net", **classes}), {key: [owner] for key, owner in owners.items()})


TWO = "a=Exp(x) b=Neg(a) c=Exp(b) d=Neg(c) y=Abs(d)"
OWNERS = {"a": "one", "b": "one", "c": "two", "d": "two", "y": ""}


def test_modules_of_one_class_that_do_the_same_are_one_function() -> None:
    plan = planned(TWO, OWNERS, {"one": "Layer", "two": "Layer"})
    [function] = plan.functions
    assert [str(region.call) for region in function.calls] == ["one", "two"]
    assert len(plan.items) == 3
    assert set(list_hidden_values(plan)) == {"a", "c"}
    assert not plan.unfolded


def test_modules_of_two_classes_are_two_functions_even_if_they_do_the_same() -> None:
    classes = {"one": "Left", "two": "Right"}
    assert not planned(TWO, OWNERS, classes).functions
    assert planned(TWO, OWNERS, classes).unfolded == {"Left": {ALONE: 1}, "Right": {ALONE: 1}}
    assert [function.class_name for function in planned(TWO, OWNERS, classes, "Left", "Right").functions] == [
        "Left",
        "Right",
    ]


def test_one_node_is_no_function_unless_it_is_asked_for() -> None:
    owners = {"a": "one", "b": "two", "c": "", "d": "", "y": ""}
    classes = {"one": "Part", "two": "Part"}
    assert planned("a=Exp(x) b=Exp(a) c=Neg(b) d=Neg(c) y=Abs(d)", owners, classes).unfolded == {"Part": {SMALL: 2}}
    assert len(planned("a=Exp(x) b=Exp(a) c=Neg(b) d=Neg(c) y=Abs(d)", owners, classes, "Part").functions) == 1


def test_a_module_that_another_one_interrupts_is_not_folded() -> None:
    """`a` and `d` are of one module; `b` and `c`, between them, of nobody: no half of it is most of it."""
    owners = {"a": "one", "b": "", "c": "one", "d": "", "e": "one", "y": ""}
    plan = planned("a=Exp(x) b=Neg(a) c=Sin(b) d=Neg(c) e=Cos(d) y=Abs(e)", owners, {"one": "Layer"}, "Layer")
    assert plan.unfolded == {"Layer": {INTERLEAVED: 1}}


def test_inner_modules_come_first() -> None:
    made = layers(2)
    record = provenance(made.proto, tree(dict(made.classes)), {key: [owner] for key, owner in made.owners.items()})
    levels = [
        [str(branch.call) for branch in level] for level in list_levels(list_fold_nodes(made.proto.graph.node), record)
    ]
    assert levels == [["layers.0.fc", "layers.1.fc"], ["layers.0", "layers.1"]]


def test_a_record_of_a_stranger_that_is_at_odds_about_who_called_whom() -> None:
    """`one.sub` was called by nobody, and what is inside of it never ran; by their paths, `one` made both calls."""
    owners = {"a": "one", "b": "one.sub.leaf", "y": "one"}
    classes = {"one": "Layer", "one.sub": "Part", "one.sub.leaf": "Leaf"}
    proto, record = tagged("a=Exp(x) b=Neg(a) y=Abs(b)", owners, classes)
    root, outer, inner = (ModuleCall(path) for path in ("", "one", "one.sub"))
    calls = (CallSite(root, None), CallSite(outer, root), CallSite(inner, None))
    record = replace(record, hierarchy=replace(record.hierarchy, calls=calls))
    levels = list(list_levels(list_fold_nodes(proto.graph.node), record))
    assert [[branch.call.path for branch in level] for level in levels] == [["one.sub.leaf"], ["one.sub"], ["one"]]
    assert fold_model(proto, record, ["Layer"], "it").model.functions


def test_what_is_asked_for_by_name_and_cannot_be_done_is_an_error() -> None:
    proto, record = tagged(TWO, OWNERS, {"one": "Layer", "two": "Layer"})
    with pytest.raises(UnknownName, match="Lyer"):
        fold_model(proto, record, ["Lyer"], "it")
    with pytest.raises(UserError, match="it is the model itself"):
        fold_model(proto, record, ["Net"], "it")


def test_types_inside_are_those_that_all_calls_have() -> None:
    proto, record = tagged(TWO, OWNERS, {"one": "Layer", "two": "Layer"})
    for name, axis in (("a", "n"), ("c", "m")):
        proto.graph.value_info.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [axis, 3]))
    folded = fold_model(proto, record, [], "it").model
    [inside] = folded.functions[0].value_info
    dims = inside.type.tensor_type.shape.dim
    assert (dims[0].WhichOneof("value"), dims[1].dim_value) == (None, 3)
