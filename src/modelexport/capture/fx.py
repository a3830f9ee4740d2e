"""FX graph: the model as torch.export or torch.fx sees it, and one run of it node by node.

Both keep with every node the modules that were open when it was made (`nn_module_stack`). Running the graph on the real
inputs adds what each node makes, so that its values can be found again in an ONNX graph. A value is let go as soon as
no later node reads it.

    model -> FX graph                     run -> Trace
    %mm = aten.mm(%x, %w)                 TracedOp("aten::mm", encoder.fc@0, reads (0, 3), makes (7,))

`FxCapture.text` is the graph for people (`--fx-graph`): nodes in order, under the module calls that issued them.

    graph:
      # (root) > encoder > encoder.fc
        %mm : [num_users=1] = call_function[target=torch.ops.aten.mm.default](args = (%x, %w), kwargs = {})

torch.export: https://docs.pytorch.org/docs/stable/export.html, torch.fx: https://docs.pytorch.org/docs/stable/fx.html
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from modelexport.capture.arguments import CallArguments, fingerprint_tensor
from modelexport.capture.hierarchy import state_tensors
from modelexport.capture.isolation import isolate_model, root_cause
from modelexport.capture.onnx_program import Stack, fx_stacks
from modelexport.record.hierarchy import ROOT, Hierarchy, ModuleCall
from modelexport.record.signals import Fingerprint, Trace, TracedOp


def fx_text(captured: _FxGraph, hierarchy: Hierarchy, model: torch.nn.Module) -> str:
    """One line for each node, a heading wherever the open module calls change; branch bodies come last."""
    return "\n".join(_lines(captured, hierarchy, model, "graph")) + "\n"


def _lines(captured: _FxGraph, hierarchy: Hierarchy, model: torch.nn.Module, name: str) -> Iterator[str]:
    yield f"{name}:"
    graph = captured.graph
    stacks = fx_stacks(graph.nodes, hierarchy, model)
    heading: str | None = None
    for node in graph.nodes:
        calls = ("?" if call is None else str(call) or "(root)" for call in stacks[node.name])
        if heading != (open_calls := " > ".join(calls) or "(root)"):
            heading = open_calls
            yield f"  # {heading}"
        yield f"    {node.format_node() or f'return {node.args[0]}'}"
    for node in graph.nodes:
        body = getattr(captured.module, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(body, torch.fx.GraphModule):
            yield ""
            yield from _lines(_FxGraph(body, body.graph, ()), hierarchy, model, str(node.target))


FxKind = Literal["torch_export", "symbolic_trace"]
_TRACE_SOURCES: Mapping[FxKind, str] = {"torch_export": "torch.export", "symbolic_trace": "torch.fx"}
_Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class FxCapture:
    """A model as FX saw it.

    trace    its operators and values; None where FX cannot trace the model
    failure  why it cannot
    text     the graph for people, with the module calls of each node; empty if there is none
    """

    trace: Trace | None
    failure: str = ""
    text: str = ""


def trace_fx(model: torch.nn.Module, arguments: CallArguments, hierarchy: Hierarchy, kind: FxKind) -> FxCapture:
    """Make the FX graph of a model for these arguments and run it once. The model is left as it was."""
    text = ""
    with isolate_model(model), _remove_constants(model):
        own = arguments.copy_tensors()
        try:
            if kind == "torch_export":
                captured = _export_graph(model, own)
            else:
                captured = _FxGraph(model, _CallTracer(own).trace(model), list(own.tensors.values()))
            text = fx_text(captured, hierarchy, model)
            stacks = fx_stacks(captured.graph.nodes, hierarchy, model)
            recorder = _FxRecorder(captured, stacks, own.tensors, state_tensors(model))
            recorder.run(*captured.feed, enable_io_processing=False)
        except Exception as error:  # noqa: BLE001 - whatever keeps torch from tracing a model is the finding
            return FxCapture(None, root_cause(error, lines=1), text)
    return FxCapture(recorder.trace(_TRACE_SOURCES[kind]), "", text)


@dataclass(frozen=True)
class _FxGraph:
    """A graph, the module that holds what it refers to, and what to give to its placeholders in their order."""

    module: torch.nn.Module
    graph: torch.fx.Graph
    feed: Sequence[object]


def _export_graph(model: torch.nn.Module, arguments: CallArguments) -> _FxGraph:
    program = torch.export.export(model, arguments.args, dict(arguments.kwargs), strict=False)
    targets = (node.target for node in program.graph.nodes)
    if any(isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable for target in targets):
        # Nothing else tells who reads a tensor before it is written into, and who afterwards.
        program = program.run_decompositions({})
    held = {**program.state_dict, **program.constants, **state_tensors(model)}
    leaves = iter(pytree.tree_leaves((arguments.args, dict(arguments.kwargs))))
    # torch.export lifts parameters, buffers and constants to inputs of the graph, in front of the user's.
    feed = [
        next(leaves) if spec.kind is InputKind.USER_INPUT else held.get(spec.target or "")
        for spec in program.graph_signature.input_specs
    ]
    return _FxGraph(program.graph_module, program.graph, feed)


class _CallTracer(torch.fx.Tracer):
    """`torch.fx.symbolic_trace` of one call: what is no tensor stays as it was given, or is left to its default."""

    def __init__(self, arguments: CallArguments) -> None:
        super().__init__()
        self._arguments = arguments

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: object = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        del is_module, concrete_args
        tensors = {name: self.create_proxy("placeholder", name, (), {}) for name in self._arguments.tensors}
        filled = self._arguments.with_tensors(tensors)  # type: ignore[arg-type]

        def forward() -> tuple[Any, ...]:
            return tuple(pytree.tree_leaves(root_fn(self.root, *filled.args, **filled.kwargs)))

        return forward, []


@contextmanager
def _remove_constants(model: torch.nn.Module) -> Iterator[None]:
    """torch.fx puts the constants that it meets on the model; take them away."""
    before = set(vars(model))
    try:
        yield
    finally:
        for name in set(vars(model)) - before:
            del vars(model)[name]


class _FxRecorder(torch.fx.Interpreter):
    """Interpreter: runs a graph node by node and records its operators. Values are known by number."""

    def __init__(self, captured: _FxGraph, stacks: Mapping[str, Stack], inputs: _Tensors, state: _Tensors) -> None:
        super().__init__(captured.module, graph=captured.graph)
        self.extra_traceback = False
        self._stacks = stacks
        self._ops: list[TracedOp] = []
        self._prints: list[Fingerprint] = []
        # Inputs, parameters and buffers live longer than the run: they are known by their identity.
        self._held: dict[int, int] = {}
        self._inputs = {name: self._hold(tensor) for name, tensor in inputs.items()}
        self._tensors = {name: self._hold(tensor) for name, tensor in state.items()}
        # What each node made: numbers in the place of tensors, None in the place of everything else.
        self._numbers: dict[torch.fx.Node, Any] = {}

    def trace(self, source: str) -> Trace:
        return Trace(source, tuple(self._ops), tuple(self._prints), self._inputs, self._tensors)

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        if n.op in ("placeholder", "get_attr"):
            self._numbers[n] = _with_numbers(result, self._hold)
        elif n.op != "output":
            part = self._part_of_a_result(n)
            self._numbers[n] = self._record(n, result) if part is None else part
        return result

    def _part_of_a_result(self, node: torch.fx.Node) -> Any:
        """Taking one tensor out of several (`getitem` of a Split's result) is no operator."""
        results = self._numbers.get(node.args[0]) if node.args and isinstance(node.args[0], torch.fx.Node) else None
        is_part = node.target is operator.getitem and isinstance(results, tuple | list | dict)
        return operator.getitem(results, node.args[1]) if is_part else None  # type: ignore[arg-type]

    def _record(self, node: torch.fx.Node, result: object) -> Any:
        numbers = _with_numbers(result, self._add)
        outputs = _numbers_in(numbers)
        if outputs:
            # The innermost call that is certain: what encloses it is right as well.
            certain = (call for call in reversed(self._stacks[node.name]) if call is not None)
            self._ops.append(TracedOp(_operator(node), next(certain, ModuleCall(ROOT)), self._read_by(node), outputs))
        return numbers

    def _read_by(self, node: torch.fx.Node) -> tuple[int, ...]:
        reads = [number for source in node.all_input_nodes for number in _numbers_in(self._numbers.get(source))]
        if node.op == "call_module":
            # torch.fx does not look into torch's own layers: their weights are no inputs of the node.
            module = self.fetch_attr(str(node.target))
            reads += [self._hold(tensor) for tensor in (*module.parameters(), *module.buffers())]
        return tuple(reads)

    def _hold(self, tensor: torch.Tensor) -> int:
        if id(tensor) not in self._held:
            self._held[id(tensor)] = self._add(tensor)
        return self._held[id(tensor)]

    def _add(self, tensor: torch.Tensor) -> int:
        self._prints.append(fingerprint_tensor(tensor))
        return len(self._prints) - 1


def _with_numbers(value: object, number: Callable[[torch.Tensor], int]) -> Any:
    return pytree.tree_map(lambda leaf: number(leaf) if isinstance(leaf, torch.Tensor) else None, value)


def _numbers_in(numbers: object) -> tuple[int, ...]:
    return tuple(number for number in pytree.tree_leaves(numbers) if number is not None)


def _operator(node: torch.fx.Node) -> str:
    """`aten::addmm`; a module that torch.fx does not look into is `module`, a function of Python `torch::relu`."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target._schema.name)
    if node.op == "call_module":
        return "module"
    space = "higher_order" if isinstance(target, torch._ops.HigherOrderOperator) else "torch"
    return f"{space}::{target if isinstance(target, str) else target.__name__}"
