"""A profile for programs. The keys are a promise: they keep to `record/schema/profile.schema.json`."""

from __future__ import annotations

import json
from typing import Any

from modelexport.record.profile import ModuleTime, NodeTime, Profile
from modelexport.views.as_csv import csv_text
from modelexport.views.printable import cell

PROFILE_SCHEMA = 1
MODULE_COLUMNS = (
    "module",
    "class",
    "time_us",
    "self_us",
    "share",
    "spread",
    "nodes",
    "calls",
    "operators",
    "providers",
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
        "time_us": round(profile.time, _DIGITS),
        "wall_us": round(profile.wall, _DIGITS),
        "spread": round(profile.spread, _DIGITS),
        "attributed": round(profile.attributed, 6),
        "modules": [_module(one, profile.time) for one in profile.modules],
        "nodes": [_node(one) for one in profile.nodes],
        "notes": list(profile.notes),
        "seconds": {step: round(seconds, _DIGITS) for step, seconds in profile.seconds.items()},
    }
    return json.dumps(document, indent=1) + "\n"


def profile_csv(profile: Profile) -> str:
    """One row for each module; what belongs to no module has an empty class."""
    rows = [
        [
            *(cell(text) for text in (one.path or "", one.class_name)),
            *(str(round(number, _DIGITS)) for number in (one.time, one.own)),
            str(round(_share(one.time, profile.time), 6)),
            *(str(round(number, _DIGITS)) for number in (one.spread, one.nodes, one.calls)),
            cell(" ".join(one.operators)),
            cell(" ".join(one.providers)),
        ]
        for one in profile.modules
    ]
    return csv_text(MODULE_COLUMNS, rows)


def _module(one: ModuleTime, whole: float) -> Json:
    return {
        "path": one.path,
        "class": one.class_name,
        "time_us": round(one.time, _DIGITS),
        "self_us": round(one.own, _DIGITS),
        "share": round(_share(one.time, whole), 6),
        "spread": round(one.spread, _DIGITS),
        "nodes": one.nodes,
        "calls": round(one.calls, _DIGITS),
        "operators": {name: round(time, _DIGITS) for name, time in one.operators.items()},
        "providers": {name: round(time, _DIGITS) for name, time in one.providers.items()},
        "shared": [
            {"modules": list(group.modules), "time_us": round(group.time, _DIGITS), "nodes": group.nodes}
            for group in one.shared
        ],
    }


def _node(one: NodeTime) -> Json:
    return {
        "key": one.key,
        "name": one.name,
        "op_type": one.op_type,
        "modules": [str(owner) for owner in one.owners],
        "time_us": round(one.time, _DIGITS),
        "calls": round(one.calls, _DIGITS),
        "provider": one.provider,
    }


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
