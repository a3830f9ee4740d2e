"""ONNX's checker and shape inference, run so that no file can make them run away.

    check_model(proto)        what is wrong with a model, in the checker's words; None for nothing
    infer_shapes(proto)       the model with the types of its values; None where ONNX cannot infer them

Both carry the content of shapes along (data propagation), and a Concat of a value with itself doubles it: thirty of
them are a thousand million numbers. And both walk through functions call by call. So both are bounded first, which
takes a walk over the nodes: what is harmless runs here, what may take long in a process of its own with limits of time
and memory, and what cannot end is not begun. https://onnx.ai/onnx/api/shape_inference.html
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache

import onnx
import onnx.checker
import onnx.defs
import onnx.shape_inference

from modelexport.errors import FileUnreadable
from modelexport.graph.functions import find_endless, measure_calls
from modelexport.graph.index import called_id, function_id
from modelexport.graph.protos import ONNX_DOMAINS, find_attribute, in_order, subgraphs, with_inner
from modelexport.record import limits

_CHECK, _INFER = "check", "infer"
_REFUSED = "it puts together shapes of more than {:,} numbers, which no tensor has"
_TOO_LONG = "ONNX's own code takes more than {} s or {} GB for it"
_INTEGERS = frozenset((onnx.TensorProto.INT32, onnx.TensorProto.INT64))
# What ONNX assumes at most of the number of axes of a tensor, in practice.
_MOST_AXES = 64


def check_model(proto: onnx.ModelProto) -> str | None:
    numbers = count_propagated(proto)
    if numbers > limits.PROPAGATED_NUMBERS:
        return _REFUSED.format(limits.PROPAGATED_NUMBERS)
    if _is_heavy(proto, numbers):
        said = _run_apart(_CHECK, proto)
        return _explain_limits() if said is None else said.decode() or None
    return _check_here(proto)


def infer_shapes(proto: onnx.ModelProto) -> onnx.ModelProto | None:
    """None where ONNX cannot: what is stated remains, and an estimate can be done without."""
    numbers = count_propagated(proto)
    if numbers > limits.PROPAGATED_NUMBERS:
        return None
    if _is_heavy(proto, numbers):
        made = _run_apart(_INFER, proto)
        return onnx.ModelProto.FromString(made) if made else None
    return _infer_here(proto)


def ensure_inferable(proto: onnx.ModelProto, subject: str) -> None:
    """Raise FileUnreadable for a model that runtimes and tools, which infer shapes too, would not return from."""
    numbers = count_propagated(proto)
    if numbers > limits.PROPAGATED_NUMBERS:
        problem = _REFUSED.format(limits.PROPAGATED_NUMBERS)
        raise FileUnreadable(f"{subject} cannot be run: {problem}", "Make the file again with the tool that wrote it.")


def _check_here(proto: onnx.ModelProto) -> str | None:
    try:
        onnx.checker.check_model(proto, full_check=True)
    except Exception as error:  # noqa: BLE001 - beside its own errors, whatever C++ throws: ValueError, RuntimeError
        return str(error) or type(error).__name__
    return None


def _infer_here(proto: onnx.ModelProto) -> onnx.ModelProto | None:
    try:
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except Exception:  # noqa: BLE001 - it has no error class of its own
        return None


def _is_heavy(proto: onnx.ModelProto, numbers: int) -> bool:
    """Files as exporters write them are not: a process of its own takes half a second to start."""
    calls = measure_calls(proto).nodes if proto.functions else 0
    return numbers > limits.UNGUARDED_NUMBERS or calls > limits.UNGUARDED_NODES


def _explain_limits() -> str:
    return _TOO_LONG.format(limits.CHECK_SECONDS, limits.CHECK_BYTES >> 30)


def _run_apart(task: str, proto: onnx.ModelProto) -> bytes | None:
    """What a process of its own answers; None if it ended at one of its limits."""
    command = [sys.executable, "-m", __name__, task]
    try:
        ended = subprocess.run(
            command, input=proto.SerializeToString(), capture_output=True, timeout=limits.CHECK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return ended.stdout if ended.returncode == 0 else None


def _main(task: str) -> None:
    with suppress(ImportError):  # Windows has none: there, time alone is limited
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limits.CHECK_BYTES, limits.CHECK_BYTES))
    proto = onnx.ModelProto.FromString(sys.stdin.buffer.read())
    if task == _CHECK:
        sys.stdout.buffer.write((_check_here(proto) or "").encode())
    else:
        inferred = _infer_here(proto)
        sys.stdout.buffer.write(b"" if inferred is None else inferred.SerializeToString())


def count_propagated(proto: onnx.ModelProto) -> int:
    """At most so many numbers are carried along: all that Concat puts together, from shapes and whole numbers."""
    functions = {function_id(function): function for function in proto.functions}
    growth: dict[str, tuple[int, int]] = {}
    calls = {
        name: {called_id(inner) for node in function.node for inner in with_inner(node)} & functions.keys()
        for name, function in functions.items()
    }
    endless = find_endless(calls)
    counted = _Growth(growth)
    for name in _callees_first({name: called - endless for name, called in calls.items() if name not in endless}):
        # What comes out is what it puts together itself, and so many times what goes in, at most.
        function = functions[name]
        own: dict[str, int] = {}
        counted.add_nodes(function.node, own)
        passed = dict.fromkeys(function.input, 1)
        _Growth({called: (0, times) for called, (_, times) in growth.items()}, axes=0).add_nodes(function.node, passed)
        growth[name] = (_longest(own, function.output), _longest(passed, function.output))
    lengths = _stored_lengths(proto.graph.initializer)
    main = _Growth(growth)
    main.add_nodes(proto.graph.node, lengths)
    return max(main.total, counted.total)


def _longest(lengths: Mapping[str, int], outputs: Iterable[str]) -> int:
    return max((lengths.get(output, 0) for output in outputs), default=0)


def _callees_first(calls: Mapping[str, set[str]]) -> Iterable[str]:
    from graphlib import TopologicalSorter

    return TopologicalSorter(calls).static_order()


def _stored_lengths(tensors: Iterable[onnx.TensorProto]) -> dict[str, int]:
    """Rows of whole numbers, and single ones; nobody takes a weight for a shape."""
    rows = (tensor for tensor in tensors if tensor.data_type in _INTEGERS and len(tensor.dims) <= 1)
    return {tensor.name: next(iter(tensor.dims), 1) for tensor in rows}


class _Growth:
    """`total`: the numbers of all values so far.

    growth  by function: how many numbers it returns of its own, and how many times what it is given
    axes    numbers of a shape; 0 to count only what comes from the inputs
    """

    def __init__(self, growth: Mapping[str, tuple[int, int]], axes: int = _MOST_AXES) -> None:
        self._growth, self._axes = growth, axes
        self.total = 0

    def add_nodes(self, nodes: Iterable[onnx.NodeProto], lengths: dict[str, int]) -> None:
        """`lengths` of values that are known to be, or to be computed from, shapes; those of the nodes are added."""
        for node in in_order(list(nodes)):
            made = self._count_node(node, [lengths.get(name) for name in node.input])
            for body in subgraphs(node):
                inside = {**lengths, **_stored_lengths(body.initializer)}
                self.add_nodes(body.node, inside)
                made = max([made, *(inside.get(value.name, 0) for value in body.output)])
            if made:
                made = min(made, _PLENTY)
                self.total += made
                lengths.update((output, made) for output in node.output if output)

    def _count_node(self, node: onnx.NodeProto, read: Sequence[int | None]) -> int:
        """read: the lengths of what a node reads; None for what is no shape."""
        known = [length for length in read if length is not None]
        if called_id(node) in self._growth:
            own, times = self._growth[called_id(node)]
            return own + times * max(known, default=0)
        operator = node.op_type if node.domain in ONNX_DOMAINS else ""
        if operator == "Shape":
            return self._axes
        if operator == "Constant":
            return _count_constant(node) if self._axes else 0
        if not known or read[0] is None or not _carries_contents(operator):
            return 0
        if operator == "Concat":
            return sum(known) if len(known) == len(read) else 0
        return max(known)


@cache
def _carries_contents(operator: str) -> bool:
    """Whether ONNX works out what it makes of shapes (Gather, Mul, …). Others, as Reshape, make tensors of any size."""
    with suppress(onnx.defs.SchemaError):
        return onnx.defs.get_schema(operator).has_data_propagation_function
    return False


_PLENTY = 1 << 40


def _count_constant(node: onnx.NodeProto) -> int:
    value = find_attribute(node, "value")
    if value is not None:
        return _stored_lengths([value.t]).get(value.t.name, 0)
    numbers = find_attribute(node, "value_int", "value_ints")
    return 0 if numbers is None else max(1, len(numbers.ints))


if __name__ == "__main__":
    _main(sys.argv[1])
