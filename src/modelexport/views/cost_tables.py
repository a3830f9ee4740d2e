"""A cost for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from modelexport.record.cost import Amounts, Cost, ModuleCost, NodeCost
from modelexport.record.polynomial import Polynomial
from modelexport.record.provenance import is_within
from modelexport.views.amounts import count_text, counted, share_text
from modelexport.views.console import plain, table
from modelexport.views.sizes import flops_text, size_text

# Modules with less than this share of FLOPs, weights and activations are left out, unless all are asked for.
_SMALL = 0.005
_TERMS, _REASONS = 3, 8
# What open axes are taken to be where modules are compared, and nowhere else.
_USUAL = 64
_NUMBERS = ("FLOPs", "share", "other", "parameters", "weights", "activations", "calls", "nodes")


def cost_tables(
    cost: Cost, *, depth: int | None = None, everything: bool = False, verbose: bool = False
) -> Iterator[RenderableType]:
    yield from _head(cost)
    yield Text()
    yield _modules(cost, list(_shown(cost, depth, everything)), 0 if verbose else _TERMS)
    yield from _foot(cost)


def node_tables(cost: Cost, *, verbose: bool = False) -> Iterator[RenderableType]:
    yield from _head(cost)
    yield Text()
    yield _nodes(cost.nodes, 0 if verbose else _TERMS)
    yield from _foot(cost)


def _head(cost: Cost) -> Iterator[Text]:
    at = ", ".join(f"{name}={size}" for name, size in cost.at.items())
    yield plain(" · ".join(part for part in (cost.file, at) if part), "bold")
    total = cost.total
    yield plain(
        f"{flops_text(total.flops)} FLOPs{_missing(total, 'flops')}, and {flops_text(total.other)} other operations"
    )
    yield plain(
        f"{count_text(total.parameters)} parameters, {size_text(Polynomial.of(total.weight_bytes))} of weights, "
        f"{size_text(total.activation_bytes)} of activations{_missing(total, 'activation_bytes')}"
    )


def _missing(amounts: Amounts, measure: str) -> str:
    count = amounts.unknown.get(measure, 0)
    return f" + what {counted(count, 'node')} take{'s' if count == 1 else ''} of which it is not known" if count else ""


def _foot(cost: Cost) -> Iterator[Text]:
    left = [axis for axis in cost.axes if axis.name not in cost.at]
    if left:
        inputs = [f"{axis.name}=…" for axis in left if axis.given]
        if inputs:
            yield plain(f"in terms of open axes; for numbers, give them sizes: --at {','.join(inputs)}", "dim")
        yield from (plain(f"{axis.name}: {axis.source}", "dim") for axis in left if not axis.given)
    yield from (plain(f"note: {note}", "yellow") for note in [*cost.notes, *_reasons(cost)])


def _reasons(cost: Cost) -> Iterator[str]:
    """Why something is not known, the most frequent reasons first."""
    found = Counter(node.reason or "no reason is known" for node in cost.unknown)
    for reason, count in found.most_common(_REASONS):
        yield f"not known of {counted(count, 'node')}: {reason}"
    if len(found) > _REASONS:
        yield f"and {len(found) - _REASONS} more reasons: --by node --all shows them"


def _modules(cost: Cost, shown: Iterable[tuple[list[str], ModuleCost]], most: int) -> Table:
    """Terms of axes take room, and have no shares: then fewer columns are shown."""
    whole = cost.total.flops.value
    settled = whole is not None and cost.total.activation_bytes.value is not None
    numbers = _NUMBERS if settled else [name for name in _NUMBERS if name not in ("share", "other")]
    found = table("", "module", *numbers, right=numbers)
    for column in found.columns[1:]:
        column.no_wrap, column.overflow = False, "fold"
    for above, module in shown:
        cells = dict(_cells(module.total, whole, most), calls=f"{module.calls:,}" if module.calls else "")
        found.add_row(plain("  " * len(above) + _name(module, above)), *(plain(cells[name]) for name in numbers))
    return found


def _cells(total: Amounts, whole: int | None, most: int) -> Iterator[tuple[str, str]]:
    share = total.flops.value
    yield "FLOPs", flops_text(total.flops, most) + _mark(total, "flops")
    yield "share", share_text(share / whole) if whole and share is not None else ""
    yield "other", flops_text(total.other, most) + _mark(total, "other")
    yield "parameters", count_text(total.parameters) if total.parameters else ""
    yield "weights", size_text(Polynomial.of(total.weight_bytes)) if total.weight_bytes else ""
    yield "activations", size_text(total.activation_bytes, most) + _mark(total, "activation_bytes")
    yield "nodes", f"{total.nodes:,}"


def _mark(amounts: Amounts, measure: str) -> str:
    return " + ?" if amounts.unknown.get(measure) else ""


def _nodes(nodes: Sequence[NodeCost], most: int) -> Table:
    columns = ("FLOPs", "other", "parameters", "weights", "activations", "times")
    found = table("", "node", "operator", "module", *columns, right=columns)
    for node in nodes:
        found.add_row(
            plain(node.name or node.key),
            plain(node.op_type),
            plain("(no module)" if node.module is None else node.module or "(model)"),
            plain(flops_text(node.flops, most)),
            plain(flops_text(node.other, most), "dim"),
            count_text(node.parameters) if node.parameters else "",
            size_text(Polynomial.of(node.weight_bytes)) if node.weight_bytes else "",
            plain(size_text(node.activation_bytes, most)),
            plain(str(node.times)) if node.times != 1 else "",
        )
    return found


def _shown(cost: Cost, depth: int | None, everything: bool) -> Iterator[tuple[list[str], ModuleCost]]:
    """Modules that have something to say, with the paths of those around them that are shown."""
    above: list[str] = []
    whole = _measures(cost.total)
    for module in cost.modules:
        path = module.path
        if path is None:
            yield [], module
            continue
        above = [one for one in above if is_within(path, one)]
        if not everything and (_is_dull(module, whole) or _is_empty(module)):
            continue
        if depth is not None and len(above) > depth:
            continue
        yield above, module
        above = [*above, path]


def _measures(amounts: Amounts) -> tuple[int, int, int]:
    return _usual(amounts.flops), amounts.weight_bytes, _usual(amounts.activation_bytes)


def _usual(size: Polynomial) -> int:
    return size.at(dict.fromkeys(size.axes, _USUAL)).value or 0


def _is_dull(module: ModuleCost, whole: tuple[int, int, int]) -> bool:
    pairs = zip(_measures(module.total), whole, strict=True)
    return bool(module.path) and not module.total.unknown and all(part <= _SMALL * all_ for part, all_ in pairs)


def _is_empty(module: ModuleCost) -> bool:
    """A container whose cost is that of the modules inside of it, like `encoder.layer`."""
    return bool(module.path) and not module.own.nodes and module.class_name in ("ModuleList", "ModuleDict")


def _name(module: ModuleCost, above: Sequence[str]) -> str:
    if module.path is None:
        return "(no module)"
    if not above:
        return module.path or module.class_name
    return module.path.removeprefix(f"{above[-1]}.") if above[-1] else module.path
