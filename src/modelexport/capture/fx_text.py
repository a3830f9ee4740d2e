"""An FX graph written for people: nodes in order, under the module calls that issued them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from modelexport.capture.fx_calls import fx_stacks
from modelexport.record.hierarchy import Hierarchy, ModuleCall


def fx_text(module: torch.nn.Module, graph: torch.fx.Graph, hierarchy: Hierarchy) -> str:
    """One line for each node, a heading wherever the open module calls change; branch bodies come last."""
    return "\n".join(_lines(module, graph, hierarchy, "graph")) + "\n"


def _lines(module: torch.nn.Module, graph: torch.fx.Graph, hierarchy: Hierarchy, name: str) -> Iterator[str]:
    yield f"{name}:"
    stacks = fx_stacks(graph.nodes, hierarchy)
    heading: str | None = None
    for node in graph.nodes:
        if heading != _heading(stacks[node.name]):
            heading = _heading(stacks[node.name])
            yield f"  # {heading}"
        yield f"    {node.format_node() or _returned(node)}"
    for node in graph.nodes:
        body = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(body, torch.fx.GraphModule):
            yield ""
            yield from _lines(body, body.graph, hierarchy, str(node.target))


def _heading(stack: tuple[ModuleCall | None, ...]) -> str:
    return " > ".join("?" if call is None else str(call) or "(root)" for call in stack) or "(root)"


def _returned(node: torch.fx.Node) -> str:
    return f"return {node.args[0]}"
