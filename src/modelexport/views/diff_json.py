"""A diff for programs. The keys are a promise: they keep to `record/schema/diff.schema.json`."""

from __future__ import annotations

import json
import math
from typing import Any

from modelexport.record.changes import (
    CostChange,
    Diff,
    FieldChange,
    ModuleChange,
    NodeChange,
    NodeRef,
    Side,
    WeightChange,
    WeightRef,
)
from modelexport.record.polynomial import Polynomial

DIFF_SCHEMA = 1

Json = dict[str, Any]


def diff_json(diff: Diff) -> str:
    document = {
        "schema": DIFF_SCHEMA,
        "identical": diff.identical,
        "left": _side(diff.left),
        "right": _side(diff.right),
        "alike": round(diff.alike, 6),
        "same_weights": round(diff.same_weights, 6),
        "weights_read": diff.weights_read,
        "counts": dict(diff.counts),
        "model": [_field(one) for one in diff.model],
        "cost": _cost(diff.cost),
        "modules": [_module(one) for one in diff.modules],
        "renamed": [{"what": one.what, "left": one.left, "right": one.right} for one in diff.renamed],
        "aligned": [[left, right] for left, right in diff.aligned.items()],
        "notes": list(diff.notes),
    }
    return json.dumps(document, indent=1) + "\n"


def _side(side: Side) -> Json:
    return {
        "path": side.path,
        "nodes": side.nodes,
        "weights": side.weights,
        "modules_from": side.source.value,
        "exporter": side.exporter,
        "module": side.module or None,
    }


def _field(change: FieldChange) -> Json:
    return {"what": change.what, "left": change.left, "right": change.right}


def _module(module: ModuleChange) -> Json:
    return {
        "change": module.change.value,
        "left": module.left,
        "right": module.right,
        "classes": list(module.classes),
        "nodes_inside": [module.nodes.left, module.nodes.right],
        "parameters": module.parameters,
        "nodes": [_node_change(one) for one in module.changes],
        "weights": [_weight_change(one) for one in module.weights],
        "cost": _cost(module.cost),
    }


def _node_change(change: NodeChange) -> Json:
    return {
        "change": change.change.value,
        "left": [_node(one) for one in change.left],
        "right": [_node(one) for one in change.right],
        "fields": [_field(one) for one in change.fields],
    }


def _node(node: NodeRef) -> Json:
    return {"key": node.key, "name": node.name, "op_type": node.op_type}


def _weight_change(change: WeightChange) -> Json:
    return {
        "form": change.form.value,
        "left": _weight(change.left),
        "right": _weight(change.right),
        "largest": _number(change.largest),
        "relative": _number(change.relative),
        "changed": change.changed,
        "values": None if change.values is None else [change.values.left, change.values.right],
        "readers": list(change.readers),
    }


def _weight(weight: WeightRef | None) -> Json | None:
    return None if weight is None else {"name": weight.name, "dtype": weight.dtype, "shape": list(weight.shape)}


def _number(number: float | None) -> float | str | None:
    """JSON has no infinity."""
    return number if number is None or math.isfinite(number) else str(number)


def _cost(cost: CostChange | None) -> Json | None:
    if cost is None:
        return None
    return {what: [_size(one), _size(other)] for what, (one, other) in cost.amounts.items()}


def _size(size: Polynomial) -> int | str:
    """A number, or an expression of the axes that are open."""
    return size.expression if size.value is None else size.value
