"""A cost for programs. The keys are a promise: they keep to `record/schema/cost.schema.json`.

An amount that depends on axes is a text, such as `2*batch*sequence**2 + 3`; one that is not known is null, or empty.
"""

from __future__ import annotations

import json
from typing import Any

from modelexport.record.cost import Amounts, Cost, ModuleCost, NodeCost
from modelexport.record.polynomial import Polynomial
from modelexport.views.as_csv import csv_text
from modelexport.views.printable import cell

COST_SCHEMA = 1
_AMOUNTS = ("nodes", "flops", "other", "parameters", "weight_bytes", "activation_bytes")
# New columns go behind the others: a reader may count them.
MODULE_COLUMNS = (
    *("module", "class", "calls"),
    *_AMOUNTS,
    *(f"own_{name}" for name in _AMOUNTS),
    *("unknown_flops", "unknown_other", "unknown_activation_bytes"),
)
NODE_COLUMNS = (
    *("name", "key", "op_type", "kind", "module", "modules"),
    *("flops", "other", "parameters", "weight_bytes", "activation_bytes", "times", "reason"),
)

Json = dict[str, Any]


def cost_json(cost: Cost) -> str:
    document = {
        "schema": COST_SCHEMA,
        "file": cost.file,
        "axes": [{"name": axis.name, "source": axis.source, "input": axis.given} for axis in cost.axes],
        "at": dict(cost.at),
        "total": _amounts(cost.total),
        "modules": [_module(one) for one in cost.modules],
        "nodes": [_node(one) for one in cost.nodes],
        "notes": list(cost.notes),
    }
    return json.dumps(document, indent=1) + "\n"


def cost_csv(cost: Cost) -> str:
    """One row for each module; what belongs to no module has an empty class."""
    return csv_text(MODULE_COLUMNS, map(_module_row, cost.modules))


def node_csv(cost: Cost) -> str:
    return csv_text(NODE_COLUMNS, map(_node_row, cost.nodes))


def _number(size: Polynomial | None) -> int | str | None:
    if size is None:
        return None
    return size.expression if size.value is None else size.value


def _text(size: Polynomial | None) -> str:
    found = _number(size)
    return "" if found is None else cell(found) if isinstance(found, str) else str(found)


def _module(one: ModuleCost) -> Json:
    return {
        "path": one.path,
        "class": one.class_name,
        "calls": one.calls,
        "own": _amounts(one.own),
        "total": _amounts(one.total),
    }


def _amounts(one: Amounts) -> Json:
    return {
        "nodes": one.nodes,
        "flops": _number(one.flops),
        "other": _number(one.other),
        "parameters": one.parameters,
        "weight_bytes": one.weight_bytes,
        "activation_bytes": _number(one.activation_bytes),
        "unknown": dict(one.unknown),
    }


def _node(one: NodeCost) -> Json:
    return {
        "key": one.key,
        "name": one.name,
        "op_type": one.op_type,
        "kind": one.kind.value,
        "modules": [str(owner) for owner in one.owners],
        "charged_to": one.module,
        "flops": _number(one.flops),
        "other": _number(one.other),
        "parameters": one.parameters,
        "weight_bytes": one.weight_bytes,
        "activation_bytes": _number(one.activation_bytes),
        "times": _number(one.times),
        "reason": one.reason,
    }


def _module_row(one: ModuleCost) -> list[str]:
    unknown = (one.total.unknown.get(name, 0) for name in ("flops", "other", "activation_bytes"))
    texts = (cell(one.path or ""), cell(one.class_name), str(one.calls))
    return [*texts, *_cells(one.total), *_cells(one.own), *map(str, unknown)]


def _cells(one: Amounts) -> list[str]:
    sizes = [str(one.nodes), _text(one.flops), _text(one.other), str(one.parameters)]
    return [*sizes, str(one.weight_bytes), _text(one.activation_bytes)]


def _node_row(one: NodeCost) -> list[str]:
    modules = ";".join(str(owner) for owner in one.owners)
    texts = (one.name, one.key, one.op_type, one.kind.value, one.module or "", modules)
    sizes = [_text(one.flops), _text(one.other), str(one.parameters), str(one.weight_bytes)]
    return [*map(cell, texts), *sizes, _text(one.activation_bytes), _text(one.times), cell(one.reason)]
