"""Abstract interpretation: the shapes of a model's inputs become those of everything in it, and the work of every node.

Nodes are gone through in the order in which they run, functions put in the place of their calls. Each reads what is
known of its inputs (`value_table`), says what is known of its outputs (`shape_rules`, `shape_arithmetic`) and how much
it does (`rules`):

    x: batch × 8  ──► MatMul (8 × 3) ──► y: batch × 3        48·batch FLOPs
                      ↑ shape rule                           ↑ rule of products

Control flow: of an If, the branch counts that does more, unless its condition is a constant; the body of a Loop or a
Scan counts as often as it runs. What comes after an If reads what that branch makes. A size that changes from one
round of a Loop to the next is open.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx

from modelexport.graph.file.weights import storage_size
from modelexport.graph.functions import InlinedModel
from modelexport.graph.index import FLOATS, MAIN, Graph, Node
from modelexport.graph.operators import RANDOM, SAME_WEIGHT
from modelexport.graph.protos import plain_domain, stated_attributes
from modelexport.inspect.cost.rules import NodeWork, Work, work_of
from modelexport.inspect.cost.shape_arithmetic import constant_values, output_dtype
from modelexport.inspect.cost.shape_rules import output_shapes
from modelexport.inspect.cost.value_table import Partial, ValueTable, constant_of, infer_outputs, plain_attribute
from modelexport.inspect.cost.values import CANNOT, UNDEFINED, OperatorCall, Shape, Unknown, Value, as_number, product
from modelexport.record.polynomial import Polynomial, sizes_sum
from modelexport.record.results.cost import ZERO, Kind

Inputs = tuple[Value | None, ...]
_Inferred = tuple[Sequence[Partial | None], Sequence[int], np.ndarray | None]
# Numbers that an input may have for its node to be compared with others: axes and shapes, and no tables.
_MOST_COMPARED = 8
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
# Exporters write this or more as the number of rounds of a Loop that has no limit.
_NO_LIMIT = 2**31 - 1
# What an open axis is taken to be where two branches are compared.
_USUAL_SIZE = 64


class Propagation:
    """One pass over a graph, forward: it never has to go back, as nodes are in topological order.

    model   the nodes with functions put in the place of their calls
    values  what is known of each value so far
    """

    def __init__(self, proto: onnx.ModelProto, graph: Graph, at: Mapping[str, int], model: InlinedModel) -> None:
        self.model = model
        self.values = ValueTable(proto, graph, at)
        self._graph = self.model.graph
        # By what nodes have in common.
        self._inferred: dict[Hashable, _Inferred] = {}
        self._works: dict[Hashable, tuple[Work, Polynomial | None]] = {}
        self._opsets = {plain_domain(opset.domain): opset.version for opset in proto.opset_import}

    def node_works(self) -> list[NodeWork]:
        return self._run(MAIN, Polynomial.of(1))

    def _run(self, graph_id: str, times: Polynomial) -> list[NodeWork]:
        """The work of a graph's nodes, in the order in which they run."""
        works: list[NodeWork] = []
        for node in self._graph.members.get(graph_id, ()):
            bodies = self._graph.subgraphs.get(node.key, ())
            if bodies:
                # The node itself does nothing; what its bodies do is theirs.
                works.append(self._node_work(node, Work(Kind.CONTROL, ZERO, ZERO), ZERO, times))
                run_bodies = {"If": self._run_if, "Loop": self._run_loop, "Scan": self._run_scan}
                op_type = "" if plain_domain(node.domain) else node.op_type
                works += run_bodies.get(op_type, self._run_unknown)(node, bodies, times)
            else:
                works.append(self._run_node(node, times))
        return works

    def _run_node(self, node: Node, times: Polynomial) -> NodeWork:
        """What it makes is noted before its work is counted: most work goes by the numbers that come out."""
        inputs = tuple([self.values[name] if name else None for name in node.inputs])
        alike = _describe_call(node, inputs)
        outputs = self._outputs(node, inputs, alike)
        for name, value in zip(node.outputs, outputs, strict=False):
            self.values[name] = value
        return self._node_work(node, *self._work_and_bytes(node, inputs, outputs, alike), times)

    def _work_and_bytes(
        self, node: Node, inputs: Inputs, outputs: Sequence[Value], alike: Hashable
    ) -> tuple[Work, Polynomial | None]:
        """The same for all nodes that are alike and make alike; a reason why it is not known has a name in it."""
        made = None if alike is None else (alike, tuple([(value.dtype, value.shape, value.fixed) for value in outputs]))
        known = self._works.get(made)
        if known is None:
            op = self._call(node, inputs)
            known = work_of(op, [value.shape for value in outputs]), _output_bytes(op, outputs)
            if made is not None and not known[0].reason:
                self._works[made] = known
        return known

    def _call(self, node: Node, inputs: Inputs) -> OperatorCall:
        domain = plain_domain(node.domain)
        return OperatorCall(
            op_type=node.op_type,
            domain=domain,
            attributes=self._attributes(node),
            inputs=inputs,
            names=node.inputs,
            outputs=node.outputs,
            opset=self._opsets.get(domain, 1),
        )

    def _node_work(self, node: Node, work: Work, makes: Polynomial | None, times: Polynomial) -> NodeWork:
        calls, key = self.model.inlined.origin(node.key)
        reads = tuple(dict.fromkeys(name for name in node.inputs if name in self._graph.initializers))
        weights = tuple(dict.fromkeys(value.weight for value in self.values.all(node.inputs) if value.weight))
        return NodeWork(key, calls, work, times, reads, weights, makes)

    def _attributes(self, node: Node) -> dict[str, Any]:
        attributes = stated_attributes(self.model.node_proto(node)).items()
        # A reference that is left means nothing outside of a function, though files have them.
        plain = ((name, item) for name, item in attributes if item.type not in _GRAPHS and not item.ref_attr_name)
        return {name: plain_attribute(item) for name, item in plain}

    def _outputs(self, node: Node, inputs: Inputs, alike: Hashable) -> list[Value]:
        """Only the first output has contents and a weight: no operator of shape arithmetic has a second one."""
        if node.op_type == "Constant" and not plain_domain(node.domain):
            return [constant_of(self.model.node_proto(node))]
        shapes, dtypes, content = self._infer(node, inputs, alike)
        weight = next((value.weight for value in inputs if value is not None), "")
        # Without inputs it is random, or a sequence that is built: not a constant, which was dealt with above.
        known = bool(inputs) and all(value.fixed for value in inputs if value is not None)
        fixed = known and node.operator not in RANDOM
        return [
            Value(
                *self.values.with_stated(name, shapes[index] if index < len(shapes) else None, dtypes[index]),
                content=content if index == 0 else None,
                fixed=fixed,
                weight=weight if index == 0 and node.operator in SAME_WEIGHT else "",
            )
            for index, name in enumerate(node.outputs)
        ]

    def _infer(self, node: Node, inputs: Inputs, alike: Hashable) -> _Inferred:
        """Shapes, types and numbers that come out, worked out once for nodes that are alike: layers repeat."""
        known = self._inferred.get(alike)
        if known is None:
            op = self._call(node, inputs)
            known = *self._shapes_and_dtypes(op, node), constant_values(op)
            if alike is not None:
                self._inferred[alike] = known
        return known

    def _shapes_and_dtypes(self, op: OperatorCall, node: Node) -> tuple[Sequence[Partial | None], Sequence[int]]:
        """Shapes by our own rules, and by ONNX's inference where there is none."""
        shapes: Sequence[Partial | None]
        try:
            shapes = output_shapes(op) or ()
        except CANNOT:
            shapes = ()
        dtypes = [output_dtype(op, index) for index in range(len(op.outputs))]
        if len(shapes) < len(op.outputs):
            inferred = infer_outputs(op, self.model.node_proto(node))
            shapes = [*shapes, *(shape for _, shape in inferred[len(shapes) :])]
            # ONNX's answer first: our types are by default those of the first input.
            dtypes = [dtype or old for old, (dtype, _) in zip(dtypes, inferred, strict=False)] or dtypes
        return shapes, dtypes

    def _run_if(self, node: Node, bodies: Sequence[str], times: Polynomial) -> list[NodeWork]:
        """The branch that is always taken, else the one that does more, makes more axes, or comes first."""
        branches = [self._run(body, times) for body in bodies]
        results = [self.values.all(self._graph.body_outputs[body]) for body in bodies]
        fixed = self._fixed_branch(node, bodies)
        ranks = [sum(len(value.shape or ()) for value in values) for values in results]
        largest = max(range(len(bodies)), key=lambda branch: (*_extent(branches[branch]), ranks[branch], -branch))
        counted = largest if fixed is None else fixed
        for name, value in zip(node.outputs, results[counted], strict=False):
            self.values[name] = value if fixed is not None else _without_content(value)
        why = "its condition is always the same" if fixed is not None else "it takes more"
        note = f"the other branch of {node.name or node.key} counts: {why}"
        return [
            work if branch == counted else _idle(work, note) for branch, works in enumerate(branches) for work in works
        ]

    def _fixed_branch(self, node: Node, bodies: Sequence[str]) -> int | None:
        """The branch that is always taken, if there is one."""
        condition = self.values[node.inputs[0]].content if node.inputs else None
        if condition is None or condition.size != 1 or isinstance(condition.item(), Polynomial):
            return None
        wanted = "then_branch" if condition.item() else "else_branch"
        return next((index for index, body in enumerate(bodies) if body.endswith(f"|{wanted}")), None)

    def _run_loop(self, node: Node, bodies: Sequence[str], times: Polynomial) -> list[NodeWork]:
        """A body takes a counter, a condition and what is carried; it makes a condition, what is carried, and rows.

        https://onnx.ai/onnx/operators/onnx__Loop.html. What is carried comes out as it is, rows are stacked.
        """
        body, rounds = bodies[0], self._loop_rounds(node)
        counter, condition, *carried = self._graph.body_inputs[body]
        self.values[counter] = Value(onnx.TensorProto.INT64, ())
        self.values[condition] = Value(onnx.TensorProto.BOOL, ())
        works = self._run_rounds(body, carried, self.values.all(node.inputs[2:]), 1, times * rounds)
        results = self.values.all(self._graph.body_outputs[body][1:])
        for index, (name, value) in enumerate(zip(node.outputs, results, strict=False)):
            self.values[name] = _without_content(value) if index < len(carried) else _stacked(value, rounds, 0)
        return works

    def _loop_rounds(self, node: Node) -> Polynomial:
        """How often a Loop runs, at most."""
        content = self.values[node.inputs[0]].content if node.inputs and node.inputs[0] else None
        limit = None if content is None or content.size != 1 else content.item()
        if isinstance(limit, Polynomial) or (isinstance(limit, int) and 0 <= limit < _NO_LIMIT):
            return Polynomial.of(limit)
        return self._open_rounds(node)

    def _open_rounds(self, node: Node) -> Polynomial:
        """An axis of its own for a number that nothing in the file says, so that the rest stays exact."""
        name = node.name or node.key
        source = f"how often the body of {node.op_type} {name} runs, which depends on what the model is fed"
        return Polynomial.of(self.values.axes.fresh(f"rounds of {name}", source))

    def _run_scan(self, node: Node, bodies: Sequence[str], times: Polynomial) -> list[NodeWork]:
        """A body takes states and one step of each scanned input; it makes states and one step of each output.

        https://onnx.ai/onnx/operators/onnx__Scan.html. All scanned inputs are equally long: that is how often it runs.
        """
        attributes, body = self._attributes(node), bodies[0]
        count = min(max(attributes.get("num_scan_inputs", 0), 0), len(node.inputs))  # a file can state any number
        states = len(node.inputs) - count
        takes, yields = self._graph.body_inputs[body], self._graph.body_outputs[body]
        rounds: Polynomial | None = None
        axes = attributes.get("scan_input_axes") or [0] * count
        for name, inner, axis in zip(node.inputs[states:], takes[states:], axes, strict=False):
            value = self.values[name]
            self.values[inner] = _without_axis(value, axis)
            if rounds is None and value.shape and -len(value.shape) <= axis < len(value.shape):
                rounds = Polynomial.of(value.shape[axis])
        rounds = self._open_rounds(node) if rounds is None else rounds
        works = self._run_rounds(body, takes[:states], self.values.all(node.inputs[:states]), 0, times * rounds)
        to = [*attributes.get("scan_output_axes", ()), *[0] * len(node.outputs)]  # a file can state too few
        for index, (name, value) in enumerate(zip(node.outputs, self.values.all(yields), strict=False)):
            is_state = index < states
            self.values[name] = _without_content(value) if is_state else _stacked(value, rounds, to[index - states])
        return works

    def _run_rounds(
        self, body: str, names: Sequence[str], start: Sequence[Value], skipped: int, times: Polynomial
    ) -> list[NodeWork]:
        """Run a body that reads in the next round what it returned in this one, behind the first `skipped` values.

        Twice is enough: a size that differs after the first round is open in the second.
        """
        before = [_without_content(value) for value in start]
        works = self._run_with(body, names, before, times)
        after = self.values.all(self._graph.body_outputs[body][skipped:])
        merged = [
            old if old.shape == new.shape else self.values.merge_values([old, new], name)
            for old, new, name in zip(before, after, names, strict=False)
        ]
        changed = any(value is not old for value, old in zip(merged, before, strict=False))
        return self._run_with(body, names, merged, times) if changed else works

    def _run_with(self, body: str, names: Sequence[str], values: Sequence[Value], times: Polynomial) -> list[NodeWork]:
        for name, value in zip(names, values, strict=False):
            self.values[name] = value
        return self._run(body, times)

    def _run_unknown(self, node: Node, bodies: Sequence[str], times: Polynomial) -> list[NodeWork]:
        """An operator with bodies that is none of these: how often they run is open, and so is what it makes."""
        rounds = self._open_rounds(node)
        for name in node.outputs:
            self.values[name] = Value(*self.values.with_stated(name, None, UNDEFINED))
        return [work for body in bodies for work in self._run(body, times * rounds)]


def _describe_call(node: Node, inputs: Inputs) -> Hashable:
    """Equal for nodes of which the same can be said, but for names; None for one that is not worth comparing."""
    described: list[Hashable] = [node.op_type, node.domain, node.attributes, tuple(map(bool, node.outputs))]
    is_computed = any(value is not None and value.content is None for value in inputs)
    for value in inputs:
        content = None if value is None else value.content
        if value is not None and content is not None and content.size > _MOST_COMPARED:
            # A bias beside a value that is computed: neither a shape nor a number follows from it.
            if not is_computed or value.dtype not in FLOATS:
                return None
            content = None
        numbers = None if content is None else (content.shape, *content.flat)
        described.append(None if value is None else (value.dtype, value.shape, numbers))
    return tuple(described)


def _without_content(value: Value) -> Value:
    """Numbers of one branch or one round say nothing about those of another."""
    return Value(value.dtype, value.shape)


def _without_axis(value: Value, axis: int) -> Value:
    """What a round of a Scan reads: one step along the axis that it goes through."""
    if not value.shape:
        return Value(value.dtype)
    index = axis % len(value.shape)
    return Value(value.dtype, value.shape[:index] + value.shape[index + 1 :])


def _stacked(value: Value, rounds: Polynomial, axis: int) -> Value:
    """What all rounds make, one beside the other along a new axis."""
    if value.shape is None:
        return Value(value.dtype)
    index = axis % (len(value.shape) + 1)
    return Value(value.dtype, (*value.shape[:index], as_number(rounds), *value.shape[index:]))


def _idle(work: NodeWork, why: str) -> NodeWork:
    """Work of the branch that does not count: it stays in the answer, so that every node of the file has a row."""
    return replace(work, work=Work(work.work.kind, ZERO, ZERO, why), times=ZERO, makes=ZERO)


def _extent(works: Sequence[NodeWork]) -> tuple[int, int]:
    """How much it is, to compare it: products first, then everything else."""
    return (
        _at_usual_size(work.work.flops * work.times for work in works if work.work.flops is not None),
        _at_usual_size(work.work.other * work.times for work in works if work.work.other is not None),
    )


def _at_usual_size(sizes: Iterable[Polynomial]) -> int:
    total = sizes_sum(sizes)
    return total.at(dict.fromkeys(total.axes, _USUAL_SIZE)).value or 0


def _output_bytes(op: OperatorCall, outputs: Sequence[Value]) -> Polynomial | None:
    """Bytes of activations. What follows from weights alone is none: runtimes fold it when they load the file."""
    if outputs and all(value.fixed for value in outputs):
        return ZERO
    sizes = [bytes_of(value.dtype, value.shape) for value, name in zip(outputs, op.outputs, strict=False) if name]
    return None if None in sizes else sizes_sum(size for size in sizes if size is not None)


def bytes_of(dtype: int, shape: Shape | None) -> Polynomial | None:
    """Of a tensor, None if it is not known. Types of 4 bits are packed, two to a byte, and the last byte is filled."""
    eight = _bytes_of_eight(dtype)
    if shape is None or not eight:
        return None
    try:
        count = product(shape)
    except Unknown:
        return None
    return Polynomial.of(count) * (eight // 8) if eight % 8 == 0 else -(-Polynomial.of(count) * eight // 8)


@cache
def _bytes_of_eight(dtype: int) -> int:
    """Eight numbers of any type take whole bytes; 0 for texts."""
    return storage_size(onnx.TensorProto(data_type=dtype, dims=[8]))
