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
from collections.abc import Iterable, Mapping
from contextlib import suppress

import onnx
import onnx.checker
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
    if _is_endless(proto, numbers):
        return _REFUSED.format(limits.PROPAGATED_NUMBERS)
    if _is_heavy(proto, numbers):
        said = _run_apart(_CHECK, proto)
        return _explain_limits() if said is None else said.decode() or None
    return _check_here(proto)


def infer_shapes(proto: onnx.ModelProto) -> onnx.ModelProto | None:
    """None where ONNX cannot: what is stated remains, and an estimate can be done without."""
    numbers = count_propagated(proto)
    if _is_endless(proto, numbers):
        return None
    if _is_heavy(proto, numbers):
        made = _run_apart(_INFER, proto)
        return onnx.ModelProto.FromString(made) if made else None
    return _infer_here(proto)


def ensure_inferable(proto: onnx.ModelProto, subject: str) -> None:
    """Raise FileUnreadable for a model that runtimes and tools, which infer shapes too, would not return from."""
    numbers = count_propagated(proto)
    if _is_endless(proto, numbers) or (numbers > limits.PROPAGATED_NUMBERS and _run_apart(_CHECK, proto) is None):
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


def _is_endless(proto: onnx.ModelProto, numbers: int) -> bool:
    """Of functions, the bound multiplies what each could do with anything: there it is no more than a suspicion."""
    return numbers > limits.PROPAGATED_NUMBERS and not proto.functions


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
    growth: dict[str, int] = {}
    calls = {
        name: {called_id(inner) for node in function.node for inner in with_inner(node)} & functions.keys()
        for name, function in functions.items()
    }
    endless = find_endless(calls)
    counted = _Growth(growth)
    for name in _callees_first({name: called - endless for name, called in calls.items() if name not in endless}):
        # As if every input were one number: what comes out is so many times what goes in, at most.
        function = functions[name]
        lengths = dict.fromkeys(function.input, 1)
        counted.add_nodes(function.node, lengths)
        growth[name] = max((lengths.get(output, 0) for output in function.output), default=0)
    lengths = _stored_lengths(proto.graph.initializer)
    main = _Growth(growth)
    main.add_nodes(proto.graph.node, lengths)
    return max(main.total, counted.total)


def _callees_first(calls: Mapping[str, set[str]]) -> Iterable[str]:
    from graphlib import TopologicalSorter

    return TopologicalSorter(calls).static_order()


def _stored_lengths(tensors: Iterable[onnx.TensorProto]) -> dict[str, int]:
    """Rows of whole numbers, and single ones; nobody takes a weight for a shape."""
    rows = (tensor for tensor in tensors if tensor.data_type in _INTEGERS and len(tensor.dims) <= 1)
    return {tensor.name: next(iter(tensor.dims), 1) for tensor in rows}


class _Growth:
    """`total`: the numbers of all values so far. `growth`: by function, how many times what it is given it returns."""

    def __init__(self, growth: Mapping[str, int]) -> None:
        self._growth = growth
        self.total = 0

    def add_nodes(self, nodes: Iterable[onnx.NodeProto], lengths: dict[str, int]) -> None:
        """`lengths` of values that are known to be, or to be computed from, shapes; those of the nodes are added."""
        for node in in_order(list(nodes)):
            read = [lengths[name] for name in node.input if name in lengths]
            made = self._count_node(node, read)
            for body in subgraphs(node):
                inside = {**lengths, **_stored_lengths(body.initializer)}
                self.add_nodes(body.node, inside)
                made = max([made, *(inside.get(value.name, 0) for value in body.output)])
            if made:
                made = min(made, _PLENTY)
                self.total += made
                lengths.update((output, made) for output in node.output if output)

    def _count_node(self, node: onnx.NodeProto, read: list[int]) -> int:
        operator = node.op_type if node.domain in ONNX_DOMAINS else ""
        if called_id(node) in self._growth:
            return self._growth[called_id(node)] * max(read, default=1)
        if operator == "Shape":
            return _MOST_AXES
        if operator == "Constant":
            return _count_constant(node)
        return sum(read) if operator == "Concat" else max(read, default=0)


_PLENTY = 1 << 40


def _count_constant(node: onnx.NodeProto) -> int:
    value = find_attribute(node, "value")
    if value is not None:
        return _stored_lengths([value.t]).get(value.t.name, 0)
    numbers = find_attribute(node, "value_int", "value_ints")
    return 0 if numbers is None else max(1, len(numbers.ints))


if __name__ == "__main__":
    _main(sys.argv[1])
