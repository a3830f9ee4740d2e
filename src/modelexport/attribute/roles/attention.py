"""Attention: a softmax between two products of computed values, or one node that is all of it.

    x ─► MatMul(w) ─► q ──┐
    x ─► MatMul(w) ─► k ──┴► MatMul ─► Div ─► Add(mask) ─► Softmax ─► p ──┐
    x ─► MatMul(w) ─► v ──────────────────────────────────────────────────┴► MatMul ─► MatMul(w)
         .query .key .value  .scores   .scale  .mask       .softmax          .context   .output

The product before the softmax makes the scores, the one after it weighs the values. Which projections made query, key
and value, and which one reads the result, is in the value origins. A softmax over the product with a *weight* is a
router or a classifier, and no attention.

Operand order: the key is the operand of the scores whose axis is summed over in the product with the values. The axis
is followed from the second product back to the first, counted from the last, because reshapes in between split and
merge the axes in front.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from modelexport.attribute.roles.value_origins import CROWD, ProductNode, RoleFlow
from modelexport.graph.constants import integer, integers, text
from modelexport.graph.index import Node
from modelexport.graph.operators import ATTENTIONS, ATTENTIONS_THAT_PROJECT, CARRIERS, data_inputs

_LAST, _BEFORE_LAST = -1, -2  # axes, counted from the end


def key_is_left(scores: ProductNode, chain: list[tuple[Node, str]], context: ProductNode) -> bool:
    """`chain` holds the nodes from the operand of `context` back to `scores`, each with the input that was followed."""
    probabilities = chain[0][0].outputs if chain else scores.node.outputs
    axis = _summed_axis(context, is_left=context.left in probabilities)
    for node, _ in chain:
        # https://onnx.ai/onnx/operators/onnx__Transpose.html: `perm` says which axis of the input becomes this one.
        order = integers(node, "perm") if node.operator == "Transpose" else ()
        axis = order[axis] - len(order) if len(order) >= -axis else axis
    terms = _terms(scores)
    if terms is None:
        return axis == _BEFORE_LAST
    left, right, result = terms
    label = result[axis] if len(result) >= -axis else result[-1]
    return label in left and label not in right


def _summed_axis(product: ProductNode, *, is_left: bool) -> int:
    terms = _terms(product)
    if terms is not None:
        left, right, result = terms
        labels, partner = (left, right) if is_left else (right, left)
        summed = [label for label in labels if label in partner and label not in result]
        return labels.index(summed[0]) - len(labels) if summed else _LAST
    flipped = bool(integer(product.node, "transA" if is_left else "transB"))
    return _LAST if is_left != flipped else _BEFORE_LAST


def _terms(product: ProductNode) -> tuple[str, str, str] | None:
    """The two operands and the result of an Einsum, as labels of axes: https://onnx.ai/onnx/operators/onnx__Einsum.html"""
    if product.node.operator != "Einsum":
        return None
    operands, _, result = text(product.node, "equation").replace(" ", "").replace("...", "").partition("->")
    terms = operands.split(",")
    return (terms[0], terms[1], result) if len(terms) == 2 else None


def chain_back(flow: RoleFlow, value: str, scores: ProductNode) -> list[tuple[Node, str]]:
    """The nodes from a value back to the product that it comes from, each with the input that leads there."""
    chain: list[tuple[Node, str]] = []
    while True:
        node = flow.graph.producers.get(value)
        if node is None or node.key == scores.key:
            return chain
        leading = [item for item in data_inputs(node) if scores.key in flow.origin(item).sources]
        if not leading:
            return chain
        chain.append((node, leading[0]))
        value = leading[0]


SELF, CROSS = "attention", "cross_attention"
_RANK_OF_A_PROJECTION = 2  # a query that is split into heads has more axes

# What can lie between the softmax and the product with the values: moved, masked, scaled or joined with others.
_CARRIES = CARRIERS | {"Where", "Mul", "Div", "Concat", "ScatterND", "ScatterElements"}


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention, by node and by value.

    steps     the nodes from the scores to the product with the values, last first, each with the input followed
    scores    the product of query and key; None for a fused node
    context   the node that makes the result
    """

    kind: str
    context: Node
    query: str
    key: str
    value: str
    scores: ProductNode | None = None
    steps: tuple[tuple[Node, str], ...] = ()
    softmax: Node | None = None


def find_attentions(flow: RoleFlow) -> list[Attention]:
    return [*_find_fused(flow), *_find_decomposed(flow)]


def _find_fused(flow: RoleFlow) -> Iterator[Attention]:
    for node in flow.order:
        if node.operator not in ATTENTIONS:
            continue
        projects = (node.domain, node.op_type) in ATTENTIONS_THAT_PROJECT
        query, key, value = (*(node.inputs[:1] if projects else node.inputs[:3]), "", "", "")[:3]
        if not projects:
            # What is left out is packed into the one before: query, key and value in one, or key and value.
            # https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md (GroupQueryAttention)
            key = key or query
            value = value or key
        kind = CROSS if key and _stream(flow, query) != _stream(flow, key) else SELF
        yield Attention(kind, node, query, key, value)


def _find_decomposed(flow: RoleFlow) -> Iterator[Attention]:
    probabilities = _probabilities(flow)
    for context in flow.products.values():
        if context.weight:
            continue
        for operand, value in ((context.left, context.right), (context.right, context.left)):
            softmax = probabilities.get(operand)
            if softmax is not None and _is_computed(flow, value) and value not in probabilities:
                yield from _attentions_between(flow, softmax, context, operand, value)


def _is_computed(flow: RoleFlow, value: str) -> bool:
    """Made of what the model is fed, or of learned vectors in place of it that went through a product."""
    return flow.origin(value).content or flow.source(value) is not None


def _probabilities(flow: RoleFlow) -> Mapping[str, Node]:
    """Values that are the result of a softmax, however masked, moved or converted since."""
    softmax_of: dict[str, Node] = {}
    for node in flow.order:
        if node.operator == "Softmax":
            softmax_of.update(dict.fromkeys(node.outputs, node))
        elif node.operator in _CARRIES:
            carried = {softmax_of[value] for value in data_inputs(node) if value in softmax_of}
            if len(carried) == 1:
                softmax_of.update(dict.fromkeys(node.outputs, carried.pop()))
    return softmax_of


def _attentions_between(
    flow: RoleFlow, softmax: Node, context: ProductNode, operand: str, value: str
) -> Iterator[Attention]:
    for scores in _score_products(flow, softmax):
        steps = chain_back(flow, operand, scores)
        left = key_is_left(scores, steps, context)
        query, key = (scores.right, scores.left) if left else (scores.left, scores.right)
        if _is_computed(flow, key):
            kind = CROSS if _stream(flow, query) != _stream(flow, key) else SELF
            yield Attention(kind, context.node, query, key, value, scores, tuple(steps), softmax)


def _score_products(flow: RoleFlow, softmax: Node) -> list[ProductNode]:
    """Products of two computed values in the scores; those with positions only if no other is there."""
    products = [item for item in score_addends(flow, softmax) if not item.weight or _is_learned_query(flow, item)]
    of_content = [item for item in products if flow.origin(item.left).content and flow.origin(item.right).content]
    return of_content or products


def _is_learned_query(flow: RoleFlow, product: ProductNode) -> bool:
    """The weight is a query that was worked out beforehand: it is split into heads already, as no projection is."""
    tensor = flow.graph.initializers.get(flow.origin(product.weight).weight)
    return product.weight == product.left and tensor is not None and len(tensor.shape) > _RANK_OF_A_PROJECTION


def score_addends(flow: RoleFlow, softmax: Node) -> list[ProductNode]:
    sources = flow.origin(softmax.inputs[0]).sources
    return [flow.products[key] for key in sorted(sources) if key in flow.products]


def _stream(flow: RoleFlow, value: str) -> str:
    """Where the stream began that a query or key was projected from. In cross attention theirs are two."""
    source = flow.source(value)
    return flow.origin(source.data if source is not None and source.weight else value).root


def name_attention_roles(flow: RoleFlow, attentions: Sequence[Attention]) -> dict[str, str]:
    roles: dict[str, str] = {}
    for item in attentions:
        _name_center(flow, item, roles)
        _name_positions(flow, item, roles)
    return roles | _name_projections(flow, attentions) | _name_outputs(flow, attentions)


def _name_center(flow: RoleFlow, item: Attention, roles: dict[str, str]) -> None:
    if item.scores is None or item.softmax is None:
        roles[item.context.key] = item.kind
        return
    roles[item.scores.key] = f"{item.kind}.scores"
    roles[item.softmax.key] = f"{item.kind}.softmax"
    roles[item.context.key] = f"{item.kind}.context"
    before = [node for node, _ in item.steps].index(item.softmax) if item.softmax in dict(item.steps) else 0
    for node, followed in item.steps[before + 1 :]:
        component = _component_on_scores(flow, node, followed)
        if component:
            roles.setdefault(node.key, f"{item.kind}.{component}")


def _component_on_scores(flow: RoleFlow, node: Node, followed: str) -> str:
    others = [flow.origin(value) for value in data_inputs(node) if value != followed]
    if node.operator in ("Mul", "Div"):
        return "scale"
    if node.operator == "Where":
        return "mask"
    if node.operator in ("Add", "Sub") and others:
        return "mask" if others[0].masking and not others[0].learned else "bias"
    return ""


def _name_positions(flow: RoleFlow, item: Attention, roles: dict[str, str]) -> None:
    """Products with positions that are added to the scores, and the projections of positions that they read."""
    if item.softmax is None or item.scores is None:
        return
    for product in score_addends(flow, item.softmax):
        contents = [flow.origin(value).content for value in (product.left, product.right)]
        if product.key == item.scores.key or all(contents):
            continue
        roles[product.key] = "position"
        for value in (product.left, product.right):
            source = flow.source(value)
            if source is not None and not flow.origin(value).content:
                roles[source.key] = "position"


_PARTS = ("query", "key", "value")
# One product may serve several of them; the name says which.
_TOGETHER = {
    frozenset(_PARTS): "qkv",
    frozenset({"query", "key"}): "qk",
    frozenset({"key", "value"}): "kv",
    frozenset({"query", "value"}): "qv",
}


def _name_projections(flow: RoleFlow, attentions: Iterable[Attention]) -> dict[str, str]:
    serves: dict[str, set[str]] = {}
    kinds: dict[str, set[str]] = {}
    operands = [
        (item.kind, part, flow.origin(value).sources)
        for item in attentions
        for part, value in zip(_PARTS, (item.query, item.key, item.value), strict=True)
    ]
    # One that was put together from several products names none of them, but completes the name of one that has one.
    for kind, part, sources in sorted(operands, key=lambda operand: len(operand[2]) > 1):
        for key in sources:
            if key in serves or (len(sources) == 1 and key in flow.products and flow.products[key].weight):
                serves.setdefault(key, set()).add(part)
                kinds.setdefault(key, set()).add(kind)
    names = {key: _TOGETHER.get(frozenset(parts)) or next(iter(parts)) for key, parts in serves.items()}
    return {key: f"{SELF if SELF in kinds[key] else CROSS}.{name}" for key, name in names.items()}


def _name_outputs(flow: RoleFlow, attentions: Iterable[Attention]) -> dict[str, str]:
    """Products with a weight that read nothing but results of one kind of attention."""
    kinds = {item.context.key: item.kind for item in attentions}
    roles: dict[str, str] = {}
    for product in flow.products.values():
        sources = flow.origin(product.data).sources if product.weight else CROWD
        if sources and sources <= kinds.keys():
            is_self = any(kinds[key] == SELF for key in sources)
            roles[product.key] = f"{SELF if is_self else CROSS}.output"
    return roles
