"""A cost for programs. The keys are a promise: they keep to `record/schema/cost.schema.json`.

An amount that depends on axes is a text, such as `2*batch*sequence**2 + 3`; one that is not known is null, or empty.

A profile for programs. The keys are a promise: they keep to `record/schema/profile.schema.json`.
"""

from __future__ import annotations

import json
from typing import Any

from modelexport.errors import cell
from modelexport.record.polynomial import Polynomial
from modelexport.record.results.cost import Amounts, Cost, ModuleCost, NodeCost
from modelexport.record.results.profile import ModuleTime, NodeTime, Profile, SharedTime
from modelexport.show.data.analysis import csv_text

COST_SCHEMA = 1
_AMOUNTS = ("nodes", "flops", "other", "parameters", "weight_bytes", "activation_bytes")
# New columns go behind the others: a reader may count them.
COST_COLUMNS = (
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
        "modules": [_cost_module(one) for one in cost.modules],
        "nodes": [_cost_node(one) for one in cost.nodes],
        "notes": list(cost.notes),
    }
    return json.dumps(document, indent=1) + "\n"


def cost_csv(cost: Cost) -> str:
    """One row for each module; what belongs to no module has an empty class."""
    return csv_text(COST_COLUMNS, map(_module_row, cost.modules))


def node_csv(cost: Cost) -> str:
    return csv_text(NODE_COLUMNS, map(_node_row, cost.nodes))


def _number(size: Polynomial | None) -> int | str | None:
    if size is None:
        return None
    return size.expression if size.value is None else size.value


def _text(size: Polynomial | None) -> str:
    found = _number(size)
    return "" if found is None else cell(found) if isinstance(found, str) else str(found)


def _cost_module(one: ModuleCost) -> Json:
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


def _cost_node(one: NodeCost) -> Json:
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


PROFILE_SCHEMA = 1
PROFILE_COLUMNS = (
    *("module", "class", "time_us", "self_us", "share", "median_us", "spread", "noisy", "alike"),
    *("nodes", "calls", "kernels", "operators", "providers", "fallback_us", "shared"),
)
_DIGITS = 3

JsonProfileData = dict[str, Any]


def profile_json(profile: Profile) -> str:
    document = {
        "schema": PROFILE_SCHEMA,
        "file": profile.file,
        "runs": profile.runs,
        "warmup": profile.warmup,
        "optimization": profile.optimization,
        "providers": list(profile.providers),
        "requested_providers": list(profile.requested),
        "time_us": round(profile.time, _DIGITS),
        "busy_us": round(profile.busy, _DIGITS),
        "wall_us": round(profile.wall, _DIGITS),
        "spread": _rounded(profile.spread),
        "disturbed": profile.disturbed,
        "sum_check": _check(profile),
        "attributed": round(profile.attributed, 6),
        "modules": [_profile_module(one, profile) for one in profile.modules],
        "nodes": [_profile_node(one) for one in profile.nodes],
        "notes": list(profile.notes),
        "seconds": {step: round(seconds, _DIGITS) for step, seconds in profile.seconds.items()},
    }
    return json.dumps(document, indent=1) + "\n"


def profile_csv(profile: Profile) -> str:
    """One row for each module; what belongs to no module has an empty class. What is not known is empty."""
    return csv_text(PROFILE_COLUMNS, [_row(one, profile) for one in profile.modules])


def _row(one: ModuleTime, profile: Profile) -> list[str]:
    return [
        *(cell(text) for text in (one.path or "", one.class_name)),
        *(str(round(number, _DIGITS)) for number in (one.time, one.own)),
        str(round(_share(one.time, profile.time), 6)),
        str(round(one.median, _DIGITS)),
        "" if one.spread is None else str(round(one.spread, _DIGITS)),
        str(one.noisy).lower(),
        cell(";".join(one.alike)),
        *(str(round(number, _DIGITS)) for number in (one.nodes, one.calls, one.kernels)),
        cell(" ".join(one.operators)),
        cell(" ".join(one.providers)),
        str(round(profile.fallback(one), _DIGITS)),
        cell("; ".join(_shared_text(group) for group in one.shared)),
    ]


def _shared_text(group: SharedTime) -> str:
    return f"{'+'.join(path or '(model)' for path in group.modules)} {round(group.time, _DIGITS)}"


def _check(profile: Profile) -> JsonProfileData:
    check = profile.check
    return {
        "trace_us": round(check.trace, _DIGITS),
        "charged_us": round(check.charged, _DIGITS),
        "holds": check.holds,
    }


def _profile_module(one: ModuleTime, profile: Profile) -> JsonProfileData:
    return {
        "path": one.path,
        "class": one.class_name,
        "time_us": round(one.time, _DIGITS),
        "self_us": round(one.own, _DIGITS),
        "share": round(_share(one.time, profile.time), 6),
        "median_us": round(one.median, _DIGITS),
        "spread": _rounded(one.spread),
        "noisy": one.noisy,
        "alike": list(one.alike),
        "nodes": one.nodes,
        "calls": round(one.calls, _DIGITS),
        "kernels": round(one.kernels, _DIGITS),
        "operators": {name: round(time, _DIGITS) for name, time in one.operators.items()},
        "providers": {name: round(time, _DIGITS) for name, time in one.providers.items()},
        "fallback_us": round(profile.fallback(one), _DIGITS),
        "shared": [_shared(group) for group in one.shared],
    }


def _shared(group: SharedTime) -> JsonProfileData:
    return {
        "modules": list(group.modules),
        "time_us": round(group.time, _DIGITS),
        "nodes": group.nodes,
        "unclear": group.unclear,
    }


def _profile_node(one: NodeTime) -> JsonProfileData:
    return {
        "key": one.key,
        "name": one.name,
        "op_type": one.op_type,
        "modules": [str(owner) for owner in one.owners],
        "charged_to": one.module,
        "others": list(one.others),
        "time_us": round(one.time, _DIGITS),
        "kernels": round(one.kernels, _DIGITS),
        "provider": one.provider,
    }


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, _DIGITS)
