"""Bodies of If, Loop, Scan and functions, run with what they are given: their values are seen as the main graph's are.

ONNX Runtime returns what a node with bodies makes, not what is inside. So each body is run once more as a graph of its
own: of an If the branch that was taken, of a Loop or Scan each iteration with the state that it was given, of a
function every call.

    s = Loop(5, true, x) { h = Add(s_in, k); s_out = Tanh(h) }      round 0: s_in = x          h, s_out
                                                                    round 1: s_in = s_out      h, s_out     …

Bodies inside of bodies are run in turn. https://onnx.ai/onnx/operators/onnx__Loop.html, onnx__Scan.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import onnx

from modelexport.capture.onnxruntime.piecewise import PiecewiseRun, Scope
from modelexport.errors import ExtraMissing, RuntimeFailed
from modelexport.graph.file.reading import ModelFile, initializer_arrays
from modelexport.graph.fingerprint import fingerprint
from modelexport.graph.functions import call_attributes, resolve_references
from modelexport.graph.index import MAIN, called_id, function_id, node_key, subgraphs_with_ids, value_id
from modelexport.graph.protos import captured, declared, find_attribute, integer_attribute
from modelexport.record.signals import Fingerprint, GraphValues

# Is handed the id of a value inside of a body, the round of the body, and the value.
InsideVisitor = Callable[[str, int, np.ndarray], object]

# Rounds of a body whose values are shown, and iterations of a node that are run: those that follow say the same.
_MOST_SHOWN, _MOST_ITERATIONS = 32, 256


class BodyRuns:
    """Runs the bodies of nodes, `visit` by `visit`."""

    def __init__(self, file: ModelFile, see: InsideVisitor) -> None:
        self.file, self.see = file, see
        self.functions = {function_id(function): function for function in file.proto.functions}
        self._rounds: dict[str, int] = {}
        self._bodies: dict[str, _Body] = {}

    def visit(self, node: onnx.NodeProto, scope: Scope, graph_id: str = MAIN) -> None:
        """Run the bodies of a node that has been run. What cannot be run on its own is not seen."""
        with suppress(RuntimeFailed, _NotSeen):
            if called_id(node) in self.functions:
                self._call(node, scope)
            elif node.op_type in _RUNNERS:
                outer = {name: array for name in captured(node) if (array := scope(name)) is not None}
                bodies = {
                    body_id.rpartition("|")[2]: self._body(body_id, body, outer)
                    for body_id, body in subgraphs_with_ids(node, node_key(node, graph_id))
                }
                _RUNNERS[node.op_type](node, scope, bodies)

    def next_round(self, body_id: str) -> int | None:
        """The number of a body's next round; None if enough were shown."""
        number = self._rounds.get(body_id, 0)
        self._rounds[body_id] = number + 1
        if number < _MOST_SHOWN:
            return number
        return None

    def _body(self, body_id: str, graph: onnx.GraphProto, outer: Mapping[str, np.ndarray]) -> _Body:
        if body_id not in self._bodies:
            self._bodies[body_id] = _Body(self, body_id, graph)
        self._bodies[body_id].outer = outer
        return self._bodies[body_id]

    def _call(self, node: onnx.NodeProto, scope: Scope) -> None:
        function = self.functions[called_id(node)]
        given = call_attributes([node], self.functions)
        nodes = [onnx.NodeProto() for _ in function.node]
        for copied, original in zip(nodes, function.node, strict=True):
            copied.CopyFrom(original)
            del copied.attribute[:]
            copied.attribute.extend(resolve_references(original.attribute, given))
        graph = onnx.GraphProto(node=nodes)
        graph.input.extend(onnx.ValueInfoProto(name=name) for name in function.input)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in function.output)
        feed = {formal: _known(scope, name) for formal, name in zip(function.input, node.input, strict=False) if name}
        _Body(self, function_id(function), graph, function.opset_import).run(feed)


class _NotSeen(Exception):
    """A body needs a value that cannot be handed over, as a sequence of tensors."""


@dataclass(eq=False)
class _Body:
    """One body, as a graph of its own.

    outer    what it reads from the graphs around it
    opsets   those of a function, if they are others than the model's
    """

    runs: BodyRuns
    body_id: str
    graph: onnx.GraphProto
    opsets: Iterable[onnx.OperatorSetIdProto] = ()
    outer: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        model, opsets = self.runs.file.proto, list(self.opsets)
        used = {opset.domain for opset in opsets}
        opsets += [opset for opset in model.opset_import if opset.domain not in used]
        inside = onnx.GraphProto(
            name="body",
            node=self.graph.node,
            initializer=self.graph.initializer,
            sparse_initializer=self.graph.sparse_initializer,
        )
        proto = onnx.ModelProto(
            ir_version=model.ir_version, opset_import=opsets, functions=model.functions, graph=inside
        )
        self._pieces = PiecewiseRun(ModelFile(proto, {}))
        self._own = frozenset(declared(self.graph))
        self._hidden: Mapping[str, np.ndarray] | None = None
        self._stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in self.graph.initializer}

    @property
    def inputs(self) -> list[str]:
        return [value.name for value in self.graph.input]

    def run(self, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run it once and show its values, unless there were many rounds; what it returns."""
        shown = self.runs.next_round(self.body_id)
        self._hidden = feed if shown is None else None
        return self._run(feed, shown)

    def show_last(self) -> None:
        """Show the values of the last round, if they were not."""
        if self._hidden is not None:
            self._run(self._hidden, _MOST_SHOWN)

    def _run(self, feed: Mapping[str, np.ndarray], shown: int | None) -> list[np.ndarray]:
        wanted = [value.name for value in self.graph.output]
        returned = {**self._stored, **self.outer, **feed}

        def see(name: str, array: np.ndarray) -> None:
            if name in wanted:
                returned[name] = np.array(array)
            if shown is not None and name in self._own:
                self.runs.see(value_id(self.body_id, name), shown, array)

        def visit(node: onnx.NodeProto, scope: Scope) -> None:
            if shown is not None:
                self.runs.visit(node, scope, self.body_id)

        self._pieces.run({**self.outer, **feed}, see, visit)
        if not returned.keys() >= set(filter(None, wanted)):
            raise _NotSeen
        return [returned[name] for name in wanted if name]


def _known(scope: Scope, name: str) -> np.ndarray:
    array = scope(name)
    if array is None:
        raise _NotSeen
    return array


def _run_branch(node: onnx.NodeProto, scope: Scope, bodies: Mapping[str, _Body]) -> None:
    is_true = bool(_known(scope, node.input[0]).item())
    bodies["then_branch" if is_true else "else_branch"].run({})


def _run_loop(node: onnx.NodeProto, scope: Scope, bodies: Mapping[str, _Body]) -> None:
    body = bodies["body"]
    trips, going, *names = (*node.input, "", "")[: max(2, len(node.input))]
    states = [_known(scope, name) for name in names]
    limit = min(int(_known(scope, trips).item()), _MOST_ITERATIONS) if trips else _MOST_ITERATIONS
    goes_on = not going or bool(_known(scope, going).item())
    counter, condition = (_shape_of_input(body, index) for index in (0, 1))
    for iteration in range(limit):
        if not goes_on:
            break
        given = [np.full(counter, iteration), np.full(condition, True), *states]
        goes_on_next, *outputs = body.run(dict(zip(body.inputs, given, strict=True)))
        goes_on, states = bool(goes_on_next.item()), outputs[: len(states)]
    body.show_last()


def _run_scan(node: onnx.NodeProto, scope: Scope, bodies: Mapping[str, _Body]) -> None:
    body, sequences = bodies["body"], integer_attribute(node, "num_scan_inputs")
    given = [_known(scope, name) for name in node.input if name]
    states, scanned = given[: len(given) - sequences], given[len(given) - sequences :]
    axes, backwards = (_integers(node, name, sequences) for name in ("scan_input_axes", "scan_input_directions"))
    arrays = [np.moveaxis(array, axis, 0) for array, axis in zip(scanned, axes, strict=True)]
    arrays = [array[::-1] if is_backwards else array for array, is_backwards in zip(arrays, backwards, strict=True)]
    for elements in zip(*(array[:_MOST_ITERATIONS] for array in arrays), strict=True):
        outputs = body.run(dict(zip(body.inputs, [*states, *elements], strict=True)))
        states = outputs[: len(states)]
    body.show_last()


def _integers(node: onnx.NodeProto, name: str, count: int) -> list[int]:
    attribute = find_attribute(node, name)
    return [0] * count if attribute is None else list(attribute.ints)


def _shape_of_input(body: _Body, index: int) -> list[int]:
    """The shape of a number as a body declares it: some write one element in place of a scalar."""
    return [1] * len(body.graph.input[index].type.tensor_type.shape.dim)


_RUNNERS: Mapping[str, Callable[[onnx.NodeProto, Scope, Mapping[str, _Body]], None]] = {
    "If": _run_branch,
    "Loop": _run_loop,
    "Scan": _run_scan,
}


def fingerprint_values(file: ModelFile, inputs: Mapping[str, np.ndarray]) -> GraphValues:
    """Fingerprints of all values; those before the failure if ONNX Runtime cannot run all of the graph."""
    prints = dict(fingerprint_weights(file, "").prints)
    inside: dict[str, tuple[Fingerprint, ...]] = {}
    failure = ""

    def see(name: str, array: np.ndarray) -> None:
        prints[name] = fingerprint(array)

    def see_inside(name: str, _round: int, array: np.ndarray) -> None:
        inside[name] = (*inside.get(name, ()), fingerprint(array))

    try:
        PiecewiseRun(file, often=False).run(inputs, see, BodyRuns(file, see_inside).visit)
    except (RuntimeFailed, ExtraMissing) as error:
        failure = error.message
    return GraphValues(prints, failure, inside=inside)


def fingerprint_weights(file: ModelFile, failure: str) -> GraphValues:
    """Fingerprints of the initializers, for a graph that cannot be run."""
    return GraphValues({name: fingerprint(array) for name, array in initializer_arrays(file)}, failure)
