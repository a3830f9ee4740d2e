"""The optimizer with our replacements writes the graph that torch's own writes, and looks at every node a few times."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from measure.corpus.models import build, inputs_of, rows_by_name
from onnxscript import optimizer
from onnxscript.rewriter import RewriteRule, RewriteRuleSet, _matcher, _rewrite_rule
from tests.support.optimized_programs import optimize_both_ways, program_of
from torch.export import graph_signature

import modelexport as mx
from modelexport.capture import nearby_matches, onnx_program
from modelexport.capture.linear_optimizer import REWRITER, SIGNATURE, linear_rewriting, linear_signatures
from modelexport.graph.file.reading import open_model

_HEAD = '<ir_version: 8, opset_import: ["" : 18]>'
_BOUNDS = "<int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}, int64[1] last = {1}>"


@pytest.mark.parametrize(
    "name",
    [
        "bert",
        "gpt2",
        "llama",
        "resnet",
        "t5",
        "vit",
        "whisper",
        "mixtral",
        "branching",
        "scanned",
        "folded-norms",
        "long-short-term",
        "scattered",
    ],
)
def test_programs_of_torch_become_the_same_graph_with_the_same_lineage(name: str) -> None:
    row = rows_by_name()[name]
    model = build(row)
    plain, linear = optimize_both_ways(program_of(model, inputs_of(row, model)))
    assert linear == plain


def test_an_export_writes_the_same_file_without_the_replacements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = rows_by_name()["resnet"]
    model = build(row)
    paths = [tmp_path / folder / "model.onnx" for folder in ("linear", "plain")]
    for path in paths:
        path.parent.mkdir()
        mx.export(model, path, inputs=inputs_of(row, model), exporter="dynamo", no_check=True)
        for name in ("linear_rewriting", "linear_signatures"):
            monkeypatch.setattr(onnx_program, name, nullcontext)
    linear, plain = (open_model(path).proto for path in paths)
    assert len(plain.graph.node) > 10
    assert [linear.graph, linear.functions] == [plain.graph, plain.functions]


def two_halves(number: int, source: str = "x") -> str:
    """onnxscript takes the first Slice of a value for both halves of it, unless that is the right one."""
    right = f"right{number} = Slice({source}, two, four, last)"
    return f"{right}  left{number} = Slice({source}, zero, two, last)  out{number} = Add(left{number}, right{number})"


def chain_of_halves(count: int) -> ir.Model:
    """A value is divided, its halves are added up and doubled in width, and so on."""
    blocks = [f"{two_halves(i, f'x{i}')}  x{i + 1} = Concat <axis = 1> (out{i}, out{i})" for i in range(count)]
    body = "  ".join(blocks)
    return ir.from_onnx_text(f"{_HEAD} agraph (float[3,4] x0) => (float[3,4] x{count}) {_BOUNDS} {{ {body} }}")


def operators(written: bytes) -> list[str]:
    return [node.op_type for node in onnx.ModelProto.FromString(written).graph.node]


def test_a_rule_with_two_outputs_finds_its_second_one() -> None:
    plain, linear = optimize_both_ways(chain_of_halves(3))
    assert linear == plain
    assert operators(linear.written).count("Split") == 3


_SOURCES = ("x", "z", "t0", "t1", "t2", "t3")
_STEP = st.tuples(
    st.sampled_from(("whole", "left", "right", "Relu", "Neg", "Add")), st.integers(0, 5), st.integers(0, 5)
)
_ENDS = {"whole": ("zero", "four"), "left": ("zero", "two"), "right": ("two", "four")}


@given(st.lists(_STEP, min_size=2, max_size=14), st.integers(0, 2**14))
def test_any_order_and_sharing_of_slices_gives_the_same_graph(steps: list[tuple[str, int, int]], kept: int) -> None:
    whole, lines, made = ["x", "z"], [], []
    for number, (kind, first, second) in enumerate(steps):
        name, source, other = f"t{number}", whole[first % len(whole)], whole[second % len(whole)]
        if kind in _ENDS:
            begin, end = _ENDS[kind]
            lines.append(f"{name} = Slice({source}, {begin}, {end}, last)")
        else:
            lines.append(f"{name} = {kind}({source}, {other})" if kind == "Add" else f"{name} = {kind}({source})")
        whole += [name] if kind not in ("left", "right") else []
        made.append((name, 2 if kind in ("left", "right") else 4))
    returned = [value for number, value in enumerate(made) if kept >> number & 1] or made[-1:]
    outputs = ", ".join(f"float[3,{width}] {name}" for name, width in returned)
    text = f"{_HEAD} agraph (float[3,4] x, float[3,4] z) => ({outputs}) {_BOUNDS} {{ {'  '.join(lines)} }}"
    plain, linear = optimize_both_ways(ir.from_onnx_text(text))
    assert linear == plain


def test_branches_are_searched_by_themselves() -> None:
    branch = "NAME () => (float[3,2] NAME0) { NAMEa = Slice(x, zero, two, last)  NAME0 = Tanh(NAMEa) }"
    outside = "right = Slice(x, two, four, last)"
    text = (
        f"{_HEAD} agraph (float[3,4] x, bool c) => (float[3,2] y, float[3,2] right) {_BOUNDS} {{"
        f" {outside}  y = If (c) <then_branch = {branch.replace('NAME', 'yes')},"
        f" else_branch = one () => (float[3,2] out1) {{ {two_halves(1)} }}> }}"
    )
    plain, linear = optimize_both_ways(ir.from_onnx_text(text))
    assert linear == plain
    assert "Split" not in operators(linear.written)


def test_functions_that_are_not_inlined_are_searched_too() -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 18, "own" : 1]> agraph (float[3] x) => (float[3] y) { y = own.twice(x) }'
        ' <domain: "own", opset_import: ["" : 18]> twice (x) => (y) { a = Sigmoid(x)  b = Tanh(x)  y = Add(a, b) }'
    )

    def pattern(op: Any, x: Any) -> object:
        return op.Tanh(x), op.Sigmoid(x)

    assert rewritten(text, pattern, lambda op, x: (op.Neg(x), op.Abs(x))) == 1


def rewritten(text: str, pattern: Callable[..., object], replacement: Callable[..., object]) -> int:
    """How often a rule is applied; by onnxscript alone and with our replacements the graph is the same."""
    models = []
    counts = []
    for way in (nullcontext(), linear_rewriting()):
        model = ir.from_onnx_text(text)
        with way:
            counts.append(RewriteRuleSet([RewriteRule(pattern, replacement)]).apply_to_model(model))
        models.append(ir.to_proto(model))
    assert models[0] == models[1]
    assert counts[0] == counts[1]
    return counts[0]


def _gated(op: Any, x: Any, y: Any, z: Any) -> object:
    return op.Relu(x), op.Mul(op.Sigmoid(x), y), op.Neg(z)


def _gated_nearby(op: Any, x: Any, y: Any) -> object:
    return op.Relu(x), op.Mul(op.Sigmoid(x), y), op.Neg(y)


@pytest.mark.parametrize("pattern", [_gated, _gated_nearby])
def test_further_outputs_are_found_by_way_of_other_nodes_or_left_to_onnxscript(pattern: Callable[..., object]) -> None:
    """The last output of the first pattern may be any Neg of the graph."""
    text = (
        f"{_HEAD} agraph (float[3] x, float[3] y, float[3] w) => (float[3] a, float[3] b, float[3] c, float[3] d) {{"
        " d = Neg(w)  s = Sigmoid(x)  c = Neg(y)  b = Mul(s, y)  a = Relu(x) }"
    )
    assert rewritten(text, pattern, lambda op, x, **_: (op.Abs(x), op.Exp(x), op.Log(x))) == 1


def test_a_search_that_fails_is_made_by_onnxscript(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no order")

    monkeypatch.setattr(nearby_matches._Position, "in_order", fail)
    plain, linear = optimize_both_ways(chain_of_halves(2))
    assert linear == plain
    assert "Split" in operators(linear.written)


def test_code_that_is_not_known_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    original = _matcher.SimplePatternMatcher._match_node

    @functools.wraps(original)
    def another(*args: object, **options: object) -> bool:
        return original(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(_matcher.SimplePatternMatcher, "_match_node", another)
    assert REWRITER.find_unknown() == ("onnxscript.rewriter._matcher:SimplePatternMatcher._match_node",)
    assert not _is_replaced()


@pytest.mark.parametrize("name", ["onnxscript", "onnx-ir"])
def test_another_version_is_left_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _is_replaced()
    installed = metadata.version
    monkeypatch.setattr(metadata, "version", lambda other: "99.0" if other == name else installed(other))
    assert REWRITER.find_unknown() == (name,)
    assert not _is_replaced()


def _is_replaced() -> bool:
    before = _rewrite_rule.RewriteRule.try_rewrite
    with linear_rewriting():
        within = _rewrite_rule.RewriteRule.try_rewrite
    assert _rewrite_rule.RewriteRule.try_rewrite is before
    return within is not before


def test_visits_grow_as_the_graph_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def growth(way: Callable[[], AbstractContextManager[None]]) -> float:
        few, many = (_count_visits(count, way, monkeypatch) for count in (10, 40))
        return many / few

    assert growth(linear_rewriting) <= 4.2
    assert growth(nullcontext) > 8


def _count_visits(count: int, way: Callable[[], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a node is walked over, and how often a match is begun."""
    visits = 0
    model = chain_of_halves(count)
    walk, begin = ir.Graph.__iter__, _matcher.SimplePatternMatcher._init_match

    def counted_walk(graph: ir.Graph) -> Iterator[ir.Node]:
        nonlocal visits
        for node in walk(graph):
            visits += 1
            yield node

    def counted_begin(matcher: _matcher.SimplePatternMatcher, verbose: int) -> None:
        nonlocal visits
        visits += 1
        begin(matcher, verbose)

    with way(), monkeypatch.context() as patch:
        patch.setattr(ir.Graph, "__iter__", counted_walk)
        patch.setattr(_matcher.SimplePatternMatcher, "_init_match", counted_begin)
        optimizer.optimize_ir(model)
    return visits


def test_tables_of_weights_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not SIGNATURE.find_unknown()
    made: list[int] = []
    make: Callable[[object], object] = graph_signature._immutable_dict

    def counted(items: object) -> object:
        made.append(1)
        return make(items)

    monkeypatch.setattr(graph_signature, "_immutable_dict", counted)
    counts = {}
    for layers in (2, 6):
        model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(layers)))
        program = torch.export.export(model, (torch.ones(2, 4),))
        decomposed = []
        for name, way in (("linear", linear_signatures()), ("plain", nullcontext())):
            made.clear()
            with way:
                decomposed.append(program.run_decompositions())
            counts[name, layers] = len(made)
        linear, plain = decomposed
        assert linear.graph_signature == plain.graph_signature
        assert [set(node.meta) for node in linear.graph.nodes] == [set(node.meta) for node in plain.graph.nodes]
    assert counts["linear", 2] == counts["linear", 6]
    assert counts["plain", 2] < counts["plain", 6]
