"""Blocks: feed-forward networks, normalizations and residual adds.

Feed-forward: a product, a nonlinear function, a product; or two products, one of them gating the other.

    x ─► MatMul ─► Gelu ─► MatMul          x ─► MatMul ─► Silu ─┬► Mul ─► MatMul
         .up      .activation .down        x ─► MatMul ─────────┘         .down       .gate above, .up below

Normalization: one operator, or the arithmetic that it was decomposed into. Decomposed, it is always a value divided by
the root of the mean of its squares; a layer norm subtracts the mean first, an RMS norm does not.

    x ─► Sub(ReduceMean(x)) ─► c ─► Pow ─► ReduceMean ─► Add(eps) ─► Sqrt ─► Div(c, ·) ─► Mul(w) ─► Add(b)     all norm

Residual add: a value is added to what was made of it.

    x ─┬► … ─► MatMul ─► Add ─► y          A value that an addition reads and others too leaves a mark on everything
       └────────────────► ┘                made of it, until the last addition that reads it has run.

Few marks are open at a time, so following them costs little. A shortcut may hold one product (a convolution that
changes the shape): then what that product reads is the value.

To add a kind of block: a function that returns roles by node key, and a call of it in `assign.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from modelexport.attribute.roles.value_origins import ProductNode, RoleFlow, is_cast
from modelexport.graph.constants import constant
from modelexport.graph.index import Node
from modelexport.graph.operators import ACTIVATIONS, CARRIERS, MATRIX_PRODUCTS, NORMALIZATIONS

UP, GATE, DOWN, ACTIVATION, GATE_UP = "mlp.up", "mlp.gate", "mlp.down", "mlp.activation", "mlp.gate_up"


def find_feed_forward(flow: RoleFlow, known: Mapping[str, str]) -> dict[str, str]:
    gates, halves = _find_gates(flow)
    roles: dict[str, str] = {}
    for product in flow.products.values():
        if not _is_linear(product) or product.key in known or not flow.origin(product.data).activated:
            continue
        opening = _opening(flow, product, gates, halves)
        if opening and not any(key in known for key in opening):
            roles.update(opening)
            roles[product.key] = DOWN
            inside = (node for node in _nodes_between(flow, product, opening) if node.key not in known)
            roles.update((node.key, ACTIVATION) for node in inside if _is_activation(flow, node, opening))
    return roles


def _is_linear(product: ProductNode) -> bool:
    return bool(product.weight) and product.node.operator in MATRIX_PRODUCTS


def _opening(
    flow: RoleFlow, down: ProductNode, gates: Mapping[frozenset[str], dict[str, str]], halves: frozenset[str]
) -> dict[str, str]:
    """The products that one reads through a nonlinear function, with their roles."""
    sources = flow.origin(down.data).sources
    products = [flow.products[key] for key in sources if key in flow.products]
    if len(products) != len(sources) or not all(map(_is_linear, products)):
        return {}
    if len(products) == 1:
        return {products[0].key: GATE_UP if products[0].key in halves else UP}
    return gates.get(sources, {})


def _find_gates(flow: RoleFlow) -> tuple[dict[frozenset[str], dict[str, str]], frozenset[str]]:
    """Pairs of products of which one gates the other, and products whose one half gates the other half."""
    pairs: dict[frozenset[str], dict[str, str]] = {}
    halves: set[str] = set()
    for node in flow.order:
        if node.operator != "Mul":
            continue
        first, second = (flow.origin(value) for value in node.inputs)
        if not (len(first.sources) == len(second.sources) == 1) or first.activated == second.activated:
            continue
        gate, gated = (first, second) if first.activated else (second, first)
        if gate.sources != gated.sources:
            pairs[gate.sources | gated.sources] = {next(iter(gate.sources)): GATE, next(iter(gated.sources)): UP}
        elif gate.part and gated.part and gate.part != gated.part:
            halves |= gate.sources
    return pairs, frozenset(halves)


def _nodes_between(flow: RoleFlow, down: ProductNode, opening: Mapping[str, str]) -> Iterator[Node]:
    def inputs_from_opening(node: Node) -> list[str]:
        return [value for value in node.inputs if flow.origin(value).sources & opening.keys()]

    return flow.walk_back([down.data], inputs_from_opening, set(opening))


def _is_activation(flow: RoleFlow, node: Node, opening: Mapping[str, str]) -> bool:
    """A nonlinear function, or the arithmetic of one that was taken apart; not a bias, not the gating."""
    origins = [flow.origin(value) for value in node.inputs]
    computed = [origin for origin in origins if origin.content]
    if node.operator in ACTIVATIONS or node.operator in CARRIERS or not computed:
        return node.operator in ACTIVATIONS
    if flow.origin(node.key).sources != computed[0].sources or len(computed[0].sources) > 1:
        return False
    weighed = any(origin.weight for origin in origins if not origin.content)
    is_bias = node.operator == "Add" and len(computed) == 1 and weighed
    is_gating = len({origin.part for origin in computed}) > 1
    return not (is_bias and not computed[0].activated and not opening.keys().isdisjoint(node.inputs)) and not is_gating


NORM = "norm"
_AFTER_ROOT = frozenset({"Reciprocal", "Div", "Mul", "Cast"})
_NEGATIVE_ROOT = -0.5  # Pow(x, -0.5) is how some write 1 / Sqrt(x)
# What it normalizes, it has looked up: it is the embedding.
_NORMS = NORMALIZATIONS - {"EmbedLayerNormalization"}


def find_norms(flow: RoleFlow) -> dict[str, str]:
    return {member.key: NORM for members in group_norms(flow) for member in members}


def group_norms(flow: RoleFlow) -> Iterator[list[Node]]:
    """The nodes of each normalization."""
    for node in flow.order:
        if node.operator in _NORMS:
            yield [node, *_scale_and_shift(flow, node)]
        elif node.operator == "Sqrt" or _is_negative_root(flow, node):
            yield _norm_around(flow, node)


def _is_negative_root(flow: RoleFlow, node: Node) -> bool:
    exponent = constant(flow.graph, node.inputs[1]) if node.operator == "Pow" else None
    return exponent is not None and exponent.tolist() == [_NEGATIVE_ROOT]


def _norm_around(flow: RoleFlow, root: Node) -> list[Node]:
    """All nodes of the normalization that takes this square root; none if it is not one."""
    before = _back_to_square(flow, root)
    centered = before[-1].inputs[0] if before else ""
    after = _on_to_division(flow, root, centered) if before else []
    if not after:
        return []
    return [root, *before, *_subtraction_of_mean(flow, centered), *after, *_scale_and_shift(flow, after[-1])]


def _back_to_square(flow: RoleFlow, root: Node) -> list[Node]:
    """From the root back to the square, over the mean and the number that keeps it above zero."""
    passed: list[Node] = []
    node = flow.graph.producers.get(root.inputs[0])
    averaged = False
    while node is not None:
        passed.append(node)
        is_product_with_itself = node.operator == "Mul" and node.inputs[0] == node.inputs[1]
        if averaged and (is_product_with_itself or node.operator == "Pow"):
            return passed
        if node.operator == "ReduceMean":
            averaged = True
        elif node.operator not in ("Add", "Cast", "Clip", "Max"):
            return []
        computed = [value for value in node.inputs if flow.origin(value).content]
        node = flow.graph.producers.get(computed[0]) if len(computed) == 1 else None
    return []


def _on_to_division(flow: RoleFlow, root: Node, centered: str) -> list[Node]:
    """From the root on to where it divides the value that was squared."""
    passed: list[Node] = []
    value = root.outputs[0]
    while True:
        readers = [node for node in flow.graph.consumers.get(value, ()) if node.operator in _AFTER_ROOT]
        dividing = [node for node in readers if node.operator in ("Mul", "Div")]
        meeting = [node for node in dividing if flow.uncast(centered) in map(flow.uncast, node.inputs)]
        if meeting:
            return [*passed, meeting[0]]
        if len(readers) != 1 or readers[0].operator == "Mul":
            return []
        passed.append(readers[0])
        value = readers[0].outputs[0]


def _subtraction_of_mean(flow: RoleFlow, centered: str) -> list[Node]:
    """The subtraction of the mean, and the mean; none where only squares are averaged."""
    subtraction = flow.graph.producers.get(flow.uncast(centered))
    if subtraction is None or subtraction.operator != "Sub":
        return []
    mean = flow.graph.producers.get(flow.uncast(subtraction.inputs[1]))
    return [subtraction, mean] if mean is not None and mean.operator == "ReduceMean" else []


def _scale_and_shift(flow: RoleFlow, node: Node) -> Iterator[Node]:
    """What scales and shifts the result by weights, each once."""
    waiting = ["Mul", "Add"]  # in this order: an RMS norm has no shift
    value = node.outputs[0]
    while waiting:
        readers = flow.graph.consumers.get(value, ())
        if len(readers) != 1:
            return
        reader = readers[0]
        if reader.operator in waiting and _has_vector(flow, reader):
            del waiting[: waiting.index(reader.operator) + 1]
            yield reader
        elif not (is_cast(reader) or reader.operator == "Reshape"):
            return
        value = reader.outputs[0]


def _has_vector(flow: RoleFlow, node: Node) -> bool:
    """One of its inputs is made of a weight with at most one dimension of more than one number."""
    tensors = (flow.graph.initializers.get(_weight_behind(flow, value)) for value in node.inputs)
    return any(tensor is not None and sum(size > 1 for size in tensor.shape) == 1 for tensor in tensors)


def _weight_behind(flow: RoleFlow, value: str) -> str:
    """The weight that a value is, or that it becomes by adding a constant (some norms store their scale less one)."""
    weight = flow.origin(value).weight
    maker = flow.graph.producers.get(flow.uncast(value))
    if weight or maker is None or flow.origin(value).content or maker.operator != "Add":
        return weight
    return next((flow.origin(item).weight for item in maker.inputs if flow.origin(item).weight), "")


RESIDUAL = "residual"
# Nobody keeps more shortcuts open than this; past it, marks are dropped rather than carried along for ever.
_MOST_MARKS = 64


def find_residuals(flow: RoleFlow, known: Mapping[str, str]) -> dict[str, str]:
    last = _last_additions(flow)
    marks: dict[str, frozenset[str]] = {}
    roles: dict[str, str] = {}
    for index, node in enumerate(flow.order):
        carried = frozenset(node.inputs).union(*(marks.get(value, ()) for value in node.inputs))
        carried = frozenset(mark for mark in carried if last.get(mark, -1) > index)
        if len(carried) > _MOST_MARKS:
            carried = frozenset()
        if node.operator == "Add" and node.key not in known and _is_residual(flow, node, marks, last):
            roles[node.key] = RESIDUAL
        if carried:
            marks.update(dict.fromkeys(filter(None, node.outputs), carried))
    return roles


def _last_additions(flow: RoleFlow) -> dict[str, int]:
    """Values that an addition may come back to, with the index of the last one."""
    last: dict[str, int] = {}
    for index, node in enumerate(flow.order):
        if node.operator == "Add":
            for value in map(flow.uncast, node.inputs):
                for start in (value, _shortcut(flow, value)):
                    if flow.origin(start).content:
                        last[start] = index
    return last


def _shortcut(flow: RoleFlow, value: str) -> str:
    source = flow.source(value)
    return flow.uncast(source.data) if source is not None and source.weight else ""


def _is_residual(flow: RoleFlow, node: Node, marks: Mapping[str, frozenset[str]], last: Mapping[str, int]) -> bool:
    operands = tuple(map(flow.uncast, node.inputs))
    for value, branch in (operands, operands[::-1]):
        if value in last and value in marks.get(branch, frozenset()):
            # Without a product in between it is a function written as a polynomial.
            return flow.origin(value).sources != flow.origin(branch).sources
        start, end = _shortcut(flow, value), _shortcut(flow, branch)
        # Two products of one value are a sum of products; the other branch must be longer than the shortcut.
        if start in last and start in marks.get(end, frozenset()):
            return True
    return False
