"""Reading back what an export recorded. Nothing here needs torch, runs a model or reads a weight."""

from __future__ import annotations

from pathlib import Path

from modelexport.analysis.analyze import Subject, analyze_file
from modelexport.analysis.compare import Comparison, Examined, compare_files
from modelexport.analysis.facts import Analysis
from modelexport.analysis.findings import Validation, error
from modelexport.analysis.recorded import belongs, fit, known_nodes, read_records, read_sidecar
from modelexport.analysis.repair import repair_keys
from modelexport.analysis.validate import Evidence, run_checks
from modelexport.errors import FileUnreadable
from modelexport.graph.check import check_graph
from modelexport.graph.index import index_model
from modelexport.graph.model_file import ModelFile, open_model, save_model
from modelexport.record.provenance import Provenance

_SIDECAR = ".json"


def load(path: str | Path) -> Provenance:
    """What is known about an ONNX file, for exactly the nodes that it has; or a sidecar as it is."""
    path = Path(path)
    return read_sidecar(path) if path.suffix == _SIDECAR else _open(path).provenance


def analyze(path: str | Path, filter_tag: str | None = None) -> Analysis:
    """What a file consists of, module by module. `filter_tag` keeps the nodes whose tag contains it."""
    return analyze_file(_open(Path(path)), filter_tag)


def compare(a: str | Path, b: str | Path) -> Comparison:
    """How two files differ, module by module."""
    subjects = [_open(Path(path)) for path in (a, b)]
    left, right = (Examined(analyze_file(subject), subject.graph) for subject in subjects)
    return compare_files(left, right)


def validate(
    path: str | Path,
    check_consistency: bool = False,
    repair: bool = False,
    output: str | Path | None = None,
) -> Validation:
    """Check a file, its record and its tags. Whatever is wrong with them is a finding.

    check_consistency  also look for attributions that dataflow rules out
    repair             first rewrite the keys on the nodes from the record, in place or into `output`
    """
    path = Path(path)
    model = open_model(_model_path(path))
    stored = read_records(model, path)
    record = stored.best(path)
    graph = index_model(model.proto)
    if not belongs(record, graph):
        return _foreign(path, model, record)
    fitted = fit(record, graph, path)
    repaired, written = 0, ""
    if repair:
        target = path if output is None else Path(output)
        repaired = repair_keys(model, record, fitted)
        if repaired or output is not None:
            save_model(model, target)
            written = str(target)
    evidence = Evidence(model, graph, stored, record, fitted)
    checks, findings = run_checks(evidence, check_consistency=check_consistency)
    return Validation(str(path), checks, findings, repaired, written)


def _foreign(path: Path, model: ModelFile, record: Provenance) -> Validation:
    """A record of another graph is the one finding about tags that makes sense."""
    graph = index_model(model.proto)
    known = f"it knows {known_nodes(record, graph)} of {len(graph.nodes)} nodes"
    findings = [error("record-foreign", "", f"the record was made for another graph: {known}")]
    problem = check_graph(model)
    if problem is not None:
        findings.append(error("invalid-model", "", problem))
    return Validation(str(path), ("onnx checker", "record made for this graph"), tuple(findings))


def _open(path: Path) -> Subject:
    model = open_model(_model_path(path))
    graph = index_model(model.proto)
    record = read_records(model, path).best(path)
    return Subject(path, model.proto, graph, fit(record, graph, path))


def _model_path(path: Path) -> Path:
    if path.suffix == _SIDECAR:
        raise FileUnreadable(f"{path} is a hierarchy record, not a model", "Give the .onnx file beside it.")
    return path
