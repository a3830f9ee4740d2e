"""The module calls of a drawing: each a layer inside of the call that made it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from modelexport.converting.drawing import Fact, Layer
from modelexport.record.hierarchy import ROOT, ModuleCall
from modelexport.record.provenance import Provenance

Stacks = Mapping[ModuleCall, tuple[ModuleCall, ...]]


def draw_layers(
    provenance: Provenance, inside: Iterable[tuple[ModuleCall, bool]]
) -> tuple[Mapping[ModuleCall, Layer], Stacks]:
    """Of every call that something is drawn inside of; `inside` says of what, and whether it is a node."""
    found = Counter[ModuleCall]()
    for call, is_node in inside:
        found[call] += is_node
    own = {call: _stack(provenance, call) for call in found if call.path != ROOT}
    counts = Counter[ModuleCall]()
    stacks: dict[ModuleCall, tuple[ModuleCall, ...]] = {}
    for call, stack in own.items():
        for depth, above in enumerate(stack):
            counts[above] += found[call]
            stacks[above] = stack[: depth + 1]
    order = {site.call: place for place, site in enumerate(provenance.hierarchy.calls)}
    calls = sorted(stacks, key=lambda call: (order.get(call, len(order)), call))
    return {call: _layer(provenance, call, stacks[call], counts[call]) for call in calls}, stacks


def _stack(provenance: Provenance, call: ModuleCall) -> tuple[ModuleCall, ...]:
    return tuple(above for above in provenance.hierarchy.stack(call) if above.path != ROOT)


def _layer(provenance: Provenance, call: ModuleCall, stack: tuple[ModuleCall, ...], nodes: int) -> Layer:
    hierarchy = provenance.hierarchy
    module = hierarchy.modules.get(hierarchy.canonical.get(call.path, call.path))
    facts: dict[str, Fact] = {"module": str(call), "nodes": nodes}
    tag = provenance.tags.tag(call.path)
    if tag:
        facts["tag"] = tag
    if module is not None:
        facts |= {"class": module.class_name, "package": module.package}
        facts["parameters"] = sum(tensor.size for tensor in module.parameters)
    calls = hierarchy.call_counts.get(call.path, 0)
    if calls > 1:
        facts["calls"] = calls
    return Layer(call, _label(call, stack), "" if module is None else module.class_name, facts)


def _label(call: ModuleCall, stack: tuple[ModuleCall, ...]) -> str:
    """Its path below the call around it. A module that is held elsewhere has its whole path, behind a dot."""
    if len(stack) < 2:
        return str(call)
    above = f"{stack[-2].path}."
    text = str(call)
    return text.removeprefix(above) if text.startswith(above) else f".{text}"
