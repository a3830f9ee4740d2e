"""Results as JSON, for programs.

The keys are a promise: `analysis_json` keeps to `record/schema/analysis.schema.json`, and a change that breaks
a reader raises the number in `schema`. Characters beyond ASCII are escaped, so that no terminal or pipe can trip
over one.

Tables for spreadsheets: one row for each node of an analysis, or for each module call of a verification.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from modelexport.errors import cell
from modelexport.graph.module_totals import ModuleAmounts
from modelexport.inspect.analyze import Analysis, FileFacts, ModuleFacts, NodeFacts, RoleFacts, Tally, Unowned
from modelexport.inspect.compare import Comparison, ModuleDifference, Pair
from modelexport.inspect.validate import Finding, Validation
from modelexport.record.results.verification import CallNumbers, Difference, Verification

ANALYSIS_SCHEMA = 1
_SHARE_DIGITS = 6

Json = dict[str, Any]


def analysis_json(analysis: Analysis) -> str:
    return _text(
        {
            "schema": ANALYSIS_SCHEMA,
            "file": _file(analysis.file),
            "filter_tag": analysis.filter_tag or None,
            "nodes": [_node(node) for node in analysis.nodes],
            "modules": [_module(module) for module in analysis.modules],
            "coverage": {
                "nodes": _tally(analysis.coverage.nodes),
                "initializers": _tally(analysis.coverage.initializers),
            },
            "roles": [_role(role) for role in analysis.roles],
            "unowned": [_unowned(module) for module in analysis.unowned],
        }
    )


def validation_json(validation: Validation) -> str:
    return _text(
        {
            "schema": 1,
            "path": validation.path,
            "ok": validation.ok,
            "checks": list(validation.checks),
            "findings": [_finding(finding) for finding in validation.findings],
            "repaired": validation.repaired,
            "written": validation.written or None,
        }
    )


def comparison_json(comparison: Comparison) -> str:
    return _text(
        {
            "schema": 1,
            "identical": comparison.identical,
            "a": _file(comparison.a),
            "b": _file(comparison.b),
            "nodes": {"a": comparison.nodes.a, "b": comparison.nodes.b},
            "unattributed": {name: {"a": pair.a, "b": pair.b} for name, pair in comparison.unattributed.items()},
            "differences": [_difference(difference) for difference in comparison.differences],
            "only_a": [_module(module) for module in comparison.only_a],
            "only_b": [_module(module) for module in comparison.only_b],
            "inputs": list(comparison.inputs),
            "outputs": list(comparison.outputs),
        }
    )


def _text(document: Json) -> str:
    return json.dumps(document, indent=1) + "\n"


def _file(file: FileFacts) -> Json:
    return {
        "path": file.path,
        "ir_version": file.ir_version,
        "opsets": dict(file.opsets),
        "exporter": file.exporter,
        "strategy": file.strategy,
        "model": file.model,
        "tools": dict(file.tools),
        "fingerprint": file.fingerprint,
        "matches_record": file.matches_record,
    }


def _node(node: NodeFacts) -> Json:
    item: Json = {
        "name": node.name,
        "key": node.key,
        "op_type": node.op_type,
        "module": node.module,
        "modules": list(node.modules),
        "tag": node.tag,
        "role": node.role or None,
        "layer": node.layer,
        "confidence": node.confidence.label,
        "evidence": list(node.evidence),
    }
    return item | {"reason": node.reason} if node.reason else item


def _module(module: ModuleFacts) -> Json:
    return {
        "path": module.path,
        "class": module.class_name,
        "tag": module.tag,
        "calls": module.calls,
        **_amounts(module.own, ""),
        **_amounts(module.total, "_total"),
    }


def _amounts(amounts: ModuleAmounts, suffix: str) -> Json:
    return {
        f"nodes{suffix}": amounts.nodes,
        f"parameters{suffix}": amounts.parameters,
        f"bytes{suffix}": amounts.bytes,
        f"op_types{suffix}": dict(amounts.op_types),
    }


def _tally(tally: Tally) -> Json:
    return {
        "total": tally.total,
        "by_confidence": {level.label: _share(tally, count) for level, count in tally.by_confidence.items()},
        "by_evidence": {kind.value: _share(tally, count) for kind, count in tally.by_evidence.items()},
    }


def _share(tally: Tally, count: int) -> Json:
    return {"count": count, "share": round(tally.share(count), _SHARE_DIGITS)}


def _role(role: RoleFacts) -> Json:
    return {"role": role.role, "nodes": role.nodes, "layers": list(role.layers)}


def _unowned(module: Unowned) -> Json:
    return {"path": module.path, "class": module.class_name, "inside": module.inside, "reason": module.reason}


def _finding(finding: Finding) -> Json:
    return {
        "severity": finding.severity.value,
        "code": finding.code,
        "subject": finding.subject,
        "message": finding.message,
    }


def _difference(difference: ModuleDifference) -> Json:
    return {
        "path": difference.path,
        "class": [difference.class_a, difference.class_b],
        "tag": [difference.tag_a, difference.tag_b],
        "nodes": _pair(difference.nodes),
        "operators": {name: _pair(pair) for name, pair in difference.operators.items()},
        "changed": list(difference.changed),
        "parameters": _pair(difference.parameters),
        "bytes": _pair(difference.bytes),
    }


def _pair(pair: Pair) -> list[int]:
    return [pair.a, pair.b]


# New columns go behind the others: a reader may count them.
COLUMNS = ("name", "key", "op_type", "module", "modules", "tag", "confidence", "evidence", "reason", "role", "layer")
_DIFFERENCE = ("max_abs", "max_rel", "sqnr", "cosine", "unlike", "agrees")
CALL_COLUMNS = (
    *("path", "call", "class", "status", "reason", "lost"),
    *(f"{side}_{name}" for side in ("in", "out") for name in _DIFFERENCE),
    "fused_with",
)


def analysis_csv(analysis: Analysis) -> str:
    return csv_text(COLUMNS, map(_row, analysis.nodes))


def verification_csv(verification: Verification) -> str:
    """Infinity is written `inf`. What was not compared is empty."""
    return csv_text(CALL_COLUMNS, map(_call, verification.calls))


def csv_text(columns: Sequence[str], rows: Iterable[list[str]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue()


def _row(node: NodeFacts) -> list[str]:
    values = (
        node.name,
        node.key,
        node.op_type,
        node.module or "",
        ";".join(node.modules),
        node.tag,
        node.confidence.label,
        "; ".join(node.evidence),
        node.reason,
        node.role,
        "" if node.layer is None else str(node.layer),
    )
    return [cell(value) for value in values]


def _call(item: CallNumbers) -> list[str]:
    texts = cell(item.call.path), str(item.call.index), cell(item.class_name), item.status.value, cell(item.reason)
    fused_with = cell(";".join(map(str, item.fused_with)))
    return [*texts, str(item.lost), *_numbers(item.inputs), *_numbers(item.outputs), fused_with]


def _numbers(found: Difference | None) -> list[str]:
    """Numbers are no formulas, also with a minus sign before them."""
    if found is None:
        return [""] * len(_DIFFERENCE)
    numbers = found.max_abs, found.max_rel, found.sqnr, found.cosine, found.unlike
    return [*map(str, numbers), str(found.agrees).lower()]
