"""A profile for programs. The keys are a promise: they keep to `record/schema/profile.schema.json`."""

from __future__ import annotations

import json
from typing import Any

from modelexport.record.profile import ModuleTime, NodeTime, Profile, SharedTime
from modelexport.views.as_csv import csv_text
from modelexport.views.printable import cell

PROFILE_SCHEMA = 1
MODULE_COLUMNS = (
    *("module", "class", "time_us", "self_us", "share", "median_us", "spread", "noisy", "alike"),
    *("nodes", "calls", "kernels", "operators", "providers", "fallback_us", "shared"),
)
_DIGITS = 3

Json = dict[str, Any]


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
        "modules": [_module(one, profile) for one in profile.modules],
        "nodes": [_node(one) for one in profile.nodes],
        "notes": list(profile.notes),
        "seconds": {step: round(seconds, _DIGITS) for step, seconds in profile.seconds.items()},
    }
    return json.dumps(document, indent=1) + "\n"


def profile_csv(profile: Profile) -> str:
    """One row for each module; what belongs to no module has an empty class. What is not known is empty."""
    return csv_text(MODULE_COLUMNS, [_row(one, profile) for one in profile.modules])


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


def _check(profile: Profile) -> Json:
    check = profile.check
    return {
        "trace_us": round(check.trace, _DIGITS),
        "charged_us": round(check.charged, _DIGITS),
        "holds": check.holds,
    }


def _module(one: ModuleTime, profile: Profile) -> Json:
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


def _shared(group: SharedTime) -> Json:
    return {
        "modules": list(group.modules),
        "time_us": round(group.time, _DIGITS),
        "nodes": group.nodes,
        "unclear": group.unclear,
    }


def _node(one: NodeTime) -> Json:
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
