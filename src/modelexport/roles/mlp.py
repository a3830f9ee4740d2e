"""Feed-forward networks: a product, a nonlinear function, a product; or two products, one of them gating the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from modelexport.graph.index import Node
from modelexport.roles.flow import Flow, Product
from modelexport.roles.operators import ACTIVATIONS, MATRIX_PRODUCTS, MOVES

UP, GATE, DOWN, ACTIVATION, GATE_UP = "mlp.up", "mlp.gate", "mlp.down", "mlp.activation", "mlp.gate_up"


def mlp_roles(flow: Flow, known: Mapping[str, str]) -> dict[str, str]:
    gates, halves = _gates(flow)
    found: dict[str, str] = {}
    for product in flow.products.values():
        if not _is_linear(product) or product.key in known or not flow.trace(product.data).activated:
            continue
        opening = _opening(flow, product, gates, halves)
        if opening and not any(key in known for key in opening):
            found.update(opening)
            found[product.key] = DOWN
            inside = (node for node in _between(flow, product, opening) if node.key not in known)
            found.update((node.key, ACTIVATION) for node in inside if _is_activation(flow, node, opening))
    return found


def _is_linear(product: Product) -> bool:
    return bool(product.weight) and product.node.op_type in MATRIX_PRODUCTS


def _opening(
    flow: Flow, down: Product, gates: Mapping[frozenset[str], dict[str, str]], halves: frozenset[str]
) -> dict[str, str]:
    """The products that one reads through a nonlinear function, with their roles."""
    sources = flow.trace(down.data).sources
    products = [flow.products[key] for key in sources if key in flow.products]
    if len(products) != len(sources) or not all(map(_is_linear, products)):
        return {}
    if len(products) == 1:
        return {products[0].key: GATE_UP if products[0].key in halves else UP}
    return gates.get(sources, {})


def _gates(flow: Flow) -> tuple[dict[frozenset[str], dict[str, str]], frozenset[str]]:
    """Pairs of products of which one gates the other, and products whose one half gates the other half."""
    pairs: dict[frozenset[str], dict[str, str]] = {}
    halves: set[str] = set()
    for node in flow.order:
        if node.op_type != "Mul":
            continue
        first, second = (flow.trace(value) for value in node.inputs)
        if not (len(first.sources) == len(second.sources) == 1) or first.activated == second.activated:
            continue
        gate, gated = (first, second) if first.activated else (second, first)
        if gate.sources != gated.sources:
            pairs[gate.sources | gated.sources] = {next(iter(gate.sources)): GATE, next(iter(gated.sources)): UP}
        elif gate.part and gated.part and gate.part != gated.part:
            halves |= gate.sources
    return pairs, frozenset(halves)


def _between(flow: Flow, down: Product, opening: Mapping[str, str]) -> Iterator[Node]:
    """The nodes between the products."""
    waiting = [down.data]
    seen = set(opening)
    while waiting:
        node = flow.graph.producers.get(waiting.pop())
        if node is None or node.key in seen:
            continue
        seen.add(node.key)
        yield node
        waiting += [value for value in node.inputs if flow.trace(value).sources & opening.keys()]


def _is_activation(flow: Flow, node: Node, opening: Mapping[str, str]) -> bool:
    """A nonlinear function, or the arithmetic of one that was taken apart; not a bias, not the gating."""
    traces = [flow.trace(value) for value in node.inputs]
    computed = [trace for trace in traces if trace.content]
    if node.op_type in ACTIVATIONS or node.op_type in MOVES or not computed:
        return node.op_type in ACTIVATIONS
    if flow.trace(node.key).sources != computed[0].sources or len(computed[0].sources) > 1:
        return False
    is_bias = (
        node.op_type == "Add" and len(computed) == 1 and any(trace.weight for trace in traces if not trace.content)
    )
    is_gating = len({trace.part for trace in computed}) > 1
    return not (is_bias and not computed[0].activated and not opening.keys().isdisjoint(node.inputs)) and not is_gating
