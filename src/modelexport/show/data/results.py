"""Results as JSON and CSV: the field table of every result.

This is where a key of the JSON, or a column of the CSV, is added: one word in the table of its class (the notation is
in `fields.py`), and the same in its schema in `record/schema`. The keys are a promise: a change that breaks a reader
raises `schema`. New columns go behind the others, because a reader may count them.

    to_json(mx.analyze("bert.onnx"))             every result that is in TABLES
    to_csv(mx.cost("bert.onnx"), "nodes")        the rows that are in COLUMNS

A new output format of all verbs is a function beside these two. What takes more than one expression to compute belongs
into the result itself: figures are made in `inspect` and `verify`, where text and page find them too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from modelexport.inspect.analyze import (
    Analysis,
    ClassTally,
    Coverage,
    FileFacts,
    ModuleFacts,
    NodeFacts,
    RoleFacts,
    Tally,
    Unowned,
)
from modelexport.inspect.compare import Comparison, CountPair, Dispute, ModuleDifference, Score, Scores
from modelexport.inspect.query.answer import Answer
from modelexport.inspect.validate import Finding, Validation
from modelexport.record.lineage import Consistency, NodeOverlap, Relation, descent_of
from modelexport.record.package import AbsentModule
from modelexport.record.provenance import Claim, Confidence, NodeEntry, Provenance
from modelexport.record.results import diff, files, fleet, verification
from modelexport.record.results.cost import Amounts, Cost, ModuleCost, NodeCost, OpenAxis
from modelexport.record.results.profile import ModuleTime, NodeTime, Profile, SharedTime, SumCheck
from modelexport.record.signals import OutputCheck
from modelexport.show.data.fields import Fields, ResultField, Tables, computed, constant, csv_text, fields, json_text
from modelexport.show.data.package_results import package_columns, package_tables

_SCHEMA = constant("schema", 1)
_SHARE_DIGITS = 6  # one node of a million still counts


def to_json(result: object) -> str:
    """The result of a verb, as its schema in `record/schema` describes it."""
    return json_text(result, TABLES)


def to_csv(result: object, rows: str = "") -> str:
    """One row for each part of a result. `rows` says which parts, for a result that has several kinds of rows."""
    kinds = COLUMNS[type(result)]
    attribute = rows or next(iter(kinds))
    return csv_text(kinds[attribute], getattr(result, attribute), result)


def tally_of(provenance: Provenance) -> Tally:
    return Tally.of(entry.attribution for entry in provenance.nodes.values())


def relations_of(result: files.RelinkResult) -> Mapping[Relation, int]:
    counts = Counter(link.relation for link in result.lineage.nodes.values())
    return {relation: counts[relation] for relation in Relation if counts[relation]}


# What fields are computed from more than one attribute.


def _shares(tally: Tally, counts: Mapping[Any, int]) -> Mapping[Any, object]:
    """Counts alone would make every reader divide, and shares alone hide that they are of three nodes."""
    return {what: {"count": n, "share": round(tally.share(n), _SHARE_DIGITS)} for what, n in counts.items()}


def _number_or_text(number: float | None) -> float | str | None:
    """How far weights are apart may be infinite, which is not the same as unknown: null."""
    return number if number is None or math.isfinite(number) else str(number)


def _linked_nodes(result: files.RelinkResult) -> list[object]:
    nodes = result.provenance.nodes
    return [
        {
            "key": key,
            "sources": link.sources,
            "relation": link.relation,
            "confidence": link.confidence,
            "modules": nodes[key].attribution.modules,
        }
        for key, link in result.lineage.nodes.items()
    ]


def _shared_text(group: SharedTime) -> str:
    """`query+key 12.5`: one cell for what is a list of objects in JSON."""
    return f"{'+'.join(path or '(model)' for path in group.modules)} {round(group.time, 3)}"


_NODE_COUNT = computed("nodes", lambda result: len(result.provenance.nodes))
_CONFIDENCES = computed("by_confidence", lambda result: tally_of(result.provenance).by_confidence)
_TIME_SHARE = ResultField(
    "share", lambda module, run: module.time / run.time if run.time else 0.0, digits=_SHARE_DIGITS
)
_FALLBACK = ResultField("fallback_us", lambda module, profile: profile.fallback(module), digits=3)

# A node as `query` shows it; elsewhere a node of a record is what NodeEntry says below.
_QUERIED_NODE = fields(
    "name key op_type module=attribution.module modules=attribution.modules",
    ResultField("tag", lambda entry, answer: answer.provenance.tag(entry.attribution)),
    computed("role", lambda entry: entry.attribution.role or None),
    "layer=attribution.layer_id",
    computed("relation", lambda entry: getattr(descent_of(entry.attribution), "relation", None)),
    computed("sources", lambda entry: getattr(descent_of(entry.attribution), "sources", None)),
    "confidence=attribution.confidence evidence=attribution.evidence reason=attribution.reason!",
)

# Of one step of a fleet, in JSON and CSV alike.
_STEP = (
    "row step verb status reason key seconds:3 cpu_seconds:3 peak_bytes exit_code timeout memory attempts worker"
    " started"
)

_FILE_TABLES: Tables = {
    files.ExportResult: fields(
        _SCHEMA,
        "files exporter=provenance.origin.exporter strategy=provenance.origin.strategy",
        _NODE_COUNT,
        _CONFIDENCES,
        "check unmet notes seconds:3",
    ),
    files.Unmet: fields("asked done"),
    files.PackageExport: fields(_SCHEMA, "folder target=info.target components absent=info.absent"),
    AbsentModule: fields("path class=class_name parameters reason"),
    OutputCheck: fields("ok max_abs_diff max_rel_diff message too_small"),
    files.RelinkResult: fields(
        _SCHEMA,
        "after before related kinship=lineage.overlap files",
        computed("relations", relations_of),
        _CONFIDENCES,
        "consistency=lineage.consistency differing idle unmet notes",
        computed("nodes", _linked_nodes),
        "seconds:3",
    ),
    NodeOverlap: fields("after:4 before:4"),
    Consistency: fields(
        "nodes covered folded removed unexplained",
        computed("disorder", lambda consistency: len(consistency.disorder)),
        computed("disordered", lambda links: [{"maker": maker, "reader": reader} for maker, reader in links.disorder]),
        "strayed",
    ),
    files.QuantizeResult: fields(_SCHEMA, "lineage=relinked excluded included notes report"),
    files.PackageChange: fields(_SCHEMA, "package=folder ok components copied"),
    NodeEntry: fields("name key op_type module=attribution.module"),
    files.Extraction: fields(
        _SCHEMA,
        "source files asked modules class=class_name",
        _NODE_COUNT,
        "shared taken_along=along weight_bytes=weights inputs outputs notes check seconds:3",
    ),
    files.End: fields(
        "name dtype", computed("shape", lambda end: [dim if dim != "" else None for dim in end.shape]), "value"
    ),
    files.ExtractionCheck: fields("ok reference tolerance max_abs fed outputs missing lost runs"),
    files.OutputComparison: fields(
        "name against reordered ok=difference.agrees",
        "max_abs=difference.max_abs max_rel=difference.max_rel sqnr=difference.sqnr",
    ),
    files.FoldResult: fields(
        _SCHEMA,
        constant("verb", "fold"),
        "files",
        computed("nodes", lambda result: {"before": result.folding.before, "after": result.folding.after}),
        "functions=folding.functions unfolded=folding.unfolded outside=folding.outside note=folding.note notes",
    ),
    files.FoldedFunction: fields("name class=class_name calls nodes modules"),
    files.Unfolded: fields("class=class_name calls reason"),
    files.FlattenResult: fields(
        _SCHEMA,
        constant("verb", "flatten"),
        "files",
        computed("nodes", lambda result: {"before": result.flattening.before, "after": result.flattening.after}),
        "exact=flattening.exact inlined=flattening.inlined kept=flattening.kept note=flattening.note notes",
    ),
}

_READING_TABLES: Tables = {
    Analysis: fields(_SCHEMA, "file filter_tag? nodes modules coverage roles unowned notes"),
    FileFacts: fields("path ir_version opsets exporter strategy model tools fingerprint matches_record has_record"),
    NodeFacts: fields("name key op_type module modules tag role? layer confidence evidence reason!"),
    ModuleFacts: fields(
        "path class=class_name tag calls",
        "nodes=own.nodes shared=own.shared parameters=own.parameters bytes=own.bytes op_types=own.op_types",
        "nodes_total=total.nodes parameters_total=total.parameters",
        "bytes_total=total.bytes op_types_total=total.op_types",
    ),
    Coverage: fields("nodes initializers classes"),
    ClassTally: fields("known described unknown"),
    Tally: fields(
        "total",
        computed("by_confidence", lambda tally: _shares(tally, tally.by_confidence)),
        computed("by_evidence", lambda tally: _shares(tally, tally.by_evidence)),
    ),
    RoleFacts: fields("role nodes layers"),
    Unowned: fields("path class=class_name inside reason"),
    Answer: fields(
        _SCHEMA,
        "query",
        computed("total", lambda answer: len(answer.provenance.nodes)),
        computed("count", lambda answer: len(answer.nodes)),
        ResultField("nodes", lambda answer, _: answer.nodes, fields=_QUERIED_NODE),
        "notes",
    ),
    Validation: fields(_SCHEMA, "path ok checks findings repaired written?"),
    Finding: fields("severity code subject message"),
    Comparison: fields(_SCHEMA, "identical a b nodes unattributed differences only_a only_b inputs outputs notes"),
    CountPair: fields("a b"),
    ModuleDifference: fields(
        "path",
        computed("class", lambda module: [module.class_a, module.class_b]),
        computed("tag", lambda module: [module.tag_a, module.tag_b]),
        computed("nodes", lambda module: [module.nodes.a, module.nodes.b]),
        computed("operators", lambda module: {name: [pair.a, pair.b] for name, pair in module.operators.items()}),
        "changed",
        computed("parameters", lambda module: [module.parameters.a, module.parameters.b]),
        computed("bytes", lambda module: [module.bytes.a, module.bytes.b]),
    ),
    Scores: fields(_SCHEMA, "file=path", _NODE_COUNT, "recording_seconds=recording:3 strategies=scores disputes notes"),
    Score: fields(
        "strategy attributed",
        computed(
            "by_confidence",
            lambda score: {level: score.by_confidence.get(level, 0) for level in reversed(Confidence) if level},
        ),
        "same less other seconds:3",
    ),
    Dispute: fields(
        "name=entry.name key=entry.key op_type=entry.op_type",
        "modules=entry.attribution.modules confidence=entry.attribution.confidence claims",
    ),
    Claim: fields("strategy modules=owners confidence evidence"),
    Cost: fields(_SCHEMA, "file axes at total modules nodes notes"),
    OpenAxis: fields("name source input=given"),
    ModuleCost: fields("path class=class_name calls own total"),
    Amounts: fields("nodes flops other parameters weight_bytes activation_bytes unknown"),
    NodeCost: fields(
        "key name op_type kind modules=owners charged_to=module",
        "flops other parameters weight_bytes activation_bytes times reason",
    ),
}

_RUNNING_TABLES: Tables = {
    fleet.FleetResult: fields(_SCHEMA, "name folder ok steps rows ran kept planned notes seconds:3"),
    fleet.FleetRow: fields("name source exporter ok fault steps=results broken missing"),
    fleet.BrokenBudget: fields("step figure allowed seen"),
    fleet.PlannedStep: fields("row step command kept"),
    fleet.StepResult: fields(_STEP, "files figures operators"),
    Profile: fields(
        _SCHEMA,
        "file runs warmup optimization providers requested_providers=requested",
        "time_us=time:3 busy_us=busy:3 wall_us=wall:3 spread:3 noise:3 disturbed rankable",
        "sum_check=check attributed:6 modules nodes notes seconds:3",
    ),
    SumCheck: fields("trace_us=trace:3 charged_us=charged:3 holds"),
    ModuleTime: fields(
        "path class=class_name time_us=time:3 self_us=own:3",
        _TIME_SHARE,
        "spread:3 noisy alike nodes calls:3 kernels:3 operators:3 providers:3",
        _FALLBACK,
        "shared",
    ),
    SharedTime: fields("modules time_us=time:3 nodes unclear"),
    NodeTime: fields("key name op_type modules=owners charged_to=module others time_us=time:3 kernels:3 provider"),
    verification.Verification: fields(
        _SCHEMA,
        "file reference ok numbers_agree samples as_deployed=deployed tolerance parameters calls outputs missing",
        "skipped divergence not_finite sudden_losses frozen proof notes seconds:3",
    ),
    verification.Tolerance: fields("atol rtol min_sqnr"),
    verification.ParameterCheck: fields("compared differing unknown"),
    verification.ParameterDifference: fields("name initializer max_abs"),
    verification.CallNumbers: fields(
        "path=call.path call=call.index class=class_name status reason fused_with inputs outputs lost effect"
    ),
    verification.Difference: fields("max_abs max_rel sqnr cosine unlike equal agrees too_small"),
    verification.Divergence: fields("modules=calls classes=class_names node name inputs outputs"),
    verification.SuddenLoss: fields("path=call.path call=call.index class=class_name inputs outputs"),
    verification.NotFinite: fields("kind node modules=calls both"),
    verification.AttributionProof: fields("counts faults reasons shown_by compute compute_shown nodes"),
    verification.NodeProof: fields("name key op_type verdict fault shown_by claimed issued reason compute"),
}

_DIFF_TABLES: Tables = {
    diff.Diff: fields(
        _SCHEMA,
        "identical left right alike:6 same_weights:6 weights_read counts model cost=cost.amounts modules renamed",
        computed("aligned", lambda result: list(result.aligned.items())),
        "notes",
    ),
    diff.Side: fields("path nodes weights modules_from=source exporter module?"),
    diff.FieldChange: fields("what left right"),
    diff.Renamed: fields("what left right"),
    diff.ModuleChange: fields(
        "change left right classes",
        computed("nodes_inside", lambda module: [module.nodes.left, module.nodes.right]),
        "parameters nodes=changes weights cost=cost.amounts",
    ),
    diff.NodeChange: fields("change left right fields"),
    diff.NodeRef: fields("key name op_type"),
    diff.WeightChange: fields(
        "form left right",
        computed("largest", lambda weight: _number_or_text(weight.largest)),
        computed("relative", lambda weight: _number_or_text(weight.relative)),
        "changed",
        computed("values", lambda weight: weight.values and [weight.values.left, weight.values.right]),
        "readers",
    ),
    diff.WeightRef: fields("name dtype shape"),
}

TABLES: Tables = {
    **_FILE_TABLES,
    **_READING_TABLES,
    **_RUNNING_TABLES,
    **_DIFF_TABLES,
    **package_tables(_QUERIED_NODE),
}

# Of modules in the CSV of a cost: first with everything inside, then their own.
_MEASURES = ("nodes", "flops", "other", "parameters", "weight_bytes", "activation_bytes")
# Of what goes into a call, and of what comes out, in the CSV of a verification.
_DISTANCES = ("max_abs", "max_rel", "sqnr", "cosine", "unlike", "agrees")

# By result: the columns for each attribute whose items can be rows. The first is meant where none is named.
_FILE_COLUMNS: Mapping[type, Mapping[str, Fields]] = {
    Analysis: {
        "nodes": fields(
            "name key op_type module modules tag confidence",
            computed("evidence", lambda node: "; ".join(node.evidence)),
            "reason role layer",
        )
    },
    Cost: {
        # What belongs to no module has an empty class.
        "modules": fields(
            "module=path class=class_name calls",
            " ".join(f"{name}=total.{name}" for name in _MEASURES),
            " ".join(f"own_{name}=own.{name}" for name in _MEASURES),
            computed("unknown_flops", lambda module: module.total.unknown.get("flops", 0)),
            computed("unknown_other", lambda module: module.total.unknown.get("other", 0)),
            computed("unknown_activation_bytes", lambda module: module.total.unknown.get("activation_bytes", 0)),
        ),
        "nodes": fields(
            "name key op_type kind module modules=owners",
            "flops other parameters weight_bytes activation_bytes times reason",
        ),
    },
    Profile: {
        "modules": fields(
            "module=path class=class_name time_us=time:3 self_us=own:3",
            _TIME_SHARE,
            "spread:3 noisy alike nodes calls:3 kernels:3",
            computed("operators", lambda module: " ".join(module.operators)),
            computed("providers", lambda module: " ".join(module.providers)),
            _FALLBACK,
            computed("shared", lambda module: "; ".join(map(_shared_text, module.shared))),
        )
    },
    fleet.FleetResult: {
        "results": fields(_STEP, "model_bytes", computed("nodes", lambda step: step.figures.get("nodes"))),
        "planned": fields("row step command kept"),
    },
    verification.Verification: {
        "calls": fields(
            "path=call.path call=call.index class=class_name status reason lost effect",
            " ".join(f"in_{name}=inputs.{name}" for name in _DISTANCES),
            " ".join(f"out_{name}=outputs.{name}" for name in _DISTANCES),
            "fused_with",
        )
    },
}
COLUMNS = {**_FILE_COLUMNS, **package_columns(_FILE_COLUMNS)}
