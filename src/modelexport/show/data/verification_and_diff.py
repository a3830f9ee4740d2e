"""A verification for programs.

The keys are a promise: they keep to `record/schema/verification.schema.json`. JSON has no NaN and no infinity; a
number that is none of the finite ones is null, and `equal` tells tensors without any noise from those that are
nothing but noise.

A diff for programs. The keys are a promise: they keep to `record/schema/diff.schema.json`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from modelexport.record.hierarchy import ModuleCall
from modelexport.record.polynomial import Polynomial
from modelexport.record.results.diff import (
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
from modelexport.record.results.verification import (
    AttributionProof,
    CallNumbers,
    Difference,
    Divergence,
    NodeProof,
    NotFinite,
    ParameterCheck,
    Tolerance,
    Verification,
)

VERIFICATION_SCHEMA = 1
_SECOND_DIGITS = 3

Json = dict[str, Any]


def verification_json(verification: Verification) -> str:
    found = verification
    document = {
        "schema": VERIFICATION_SCHEMA,
        "file": found.file,
        "reference": found.reference,
        "ok": found.ok,
        "numbers_agree": found.numbers_agree,
        "samples": found.samples,
        "as_deployed": found.deployed,
        "tolerance": _tolerance(found.tolerance),
        "parameters": None if found.parameters is None else _parameters(found.parameters),
        "calls": [_call(item) for item in found.calls],
        "outputs": {name: _difference(item) for name, item in found.outputs.items()},
        "missing": list(found.missing),
        "skipped": list(found.skipped),
        "divergence": None if found.divergence is None else _divergence(found.divergence),
        "not_finite": [_not_finite(item) for item in found.not_finite],
        "proof": None if found.proof is None else _proof(found.proof),
        "notes": list(found.notes),
        "seconds": {step: round(seconds, _SECOND_DIGITS) for step, seconds in found.seconds.items()},
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _tolerance(tolerance: Tolerance) -> Json:
    given = {"atol": tolerance.atol, "rtol": tolerance.rtol, "min_sqnr": tolerance.min_sqnr}
    return {name: None if value is None else _finite(value) for name, value in given.items()}


def _parameters(check: ParameterCheck) -> Json:
    differing = [
        {"name": item.name, "initializer": item.initializer, "max_abs": _finite(item.max_abs)}
        for item in check.differing
    ]
    return {"compared": check.compared, "differing": differing, "unknown": list(check.unknown)}


def _call(item: CallNumbers) -> Json:
    return {
        "path": item.call.path,
        "call": item.call.index,
        "class": item.class_name,
        "status": item.status.value,
        "reason": item.reason,
        "fused_with": _modules(item.fused_with),
        "inputs": None if item.inputs is None else _difference(item.inputs),
        "outputs": None if item.outputs is None else _difference(item.outputs),
        "lost": _finite(item.lost),
    }


def _difference(difference: Difference) -> Json:
    return {
        "max_abs": _finite(difference.max_abs),
        "max_rel": _finite(difference.max_rel),
        "sqnr": _finite(difference.sqnr),
        "cosine": _finite(difference.cosine),
        "unlike": difference.unlike,
        "equal": difference.equal,
        "agrees": difference.agrees,
    }


def _divergence(found: Divergence) -> Json:
    return {
        "modules": _modules(found.calls),
        "classes": list(found.class_names),
        "node": found.node,
        "name": found.name,
        "inputs": None if found.inputs is None else _difference(found.inputs),
        "outputs": _difference(found.outputs),
    }


def _not_finite(found: NotFinite) -> Json:
    return {"kind": found.kind, "node": found.node, "modules": _modules(found.calls), "both": found.both}


def _proof(proof: AttributionProof) -> Json:
    return {
        "counts": {verdict.value: count for verdict, count in proof.counts.items()},
        "reasons": dict(proof.reasons),
        "compute": proof.compute,
        "compute_shown": proof.compute_shown,
        "nodes": [_verified_node(node) for node in proof.nodes],
    }


def _verified_node(node: NodeProof) -> Json:
    return {
        "name": node.name,
        "key": node.key,
        "op_type": node.op_type,
        "verdict": node.verdict.value,
        "claimed": _modules(node.claimed),
        "issued": _modules(node.issued),
        "reason": node.reason,
        "compute": node.compute,
    }


def _modules(calls: Iterable[ModuleCall]) -> list[str]:
    return [str(call) for call in calls]


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


DIFF_SCHEMA = 1

JsonDiffJson = dict[str, Any]


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


def _side(side: Side) -> JsonDiffJson:
    return {
        "path": side.path,
        "nodes": side.nodes,
        "weights": side.weights,
        "modules_from": side.source.value,
        "exporter": side.exporter,
        "module": side.module or None,
    }


def _field(change: FieldChange) -> JsonDiffJson:
    return {"what": change.what, "left": change.left, "right": change.right}


def _module(module: ModuleChange) -> JsonDiffJson:
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


def _node_change(change: NodeChange) -> JsonDiffJson:
    return {
        "change": change.change.value,
        "left": [_diff_node(one) for one in change.left],
        "right": [_diff_node(one) for one in change.right],
        "fields": [_field(one) for one in change.fields],
    }


def _diff_node(node: NodeRef) -> JsonDiffJson:
    return {"key": node.key, "name": node.name, "op_type": node.op_type}


def _weight_change(change: WeightChange) -> JsonDiffJson:
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


def _weight(weight: WeightRef | None) -> JsonDiffJson | None:
    return None if weight is None else {"name": weight.name, "dtype": weight.dtype, "shape": list(weight.shape)}


def _number(number: float | None) -> float | str | None:
    """JSON has no infinity."""
    return number if number is None or math.isfinite(number) else str(number)


def _cost(cost: CostChange | None) -> JsonDiffJson | None:
    if cost is None:
        return None
    return {what: [_size(one), _size(other)] for what, (one, other) in cost.amounts.items()}


def _size(size: Polynomial) -> int | str:
    """A number, or an expression of the axes that are open."""
    return size.expression if size.value is None else size.value
