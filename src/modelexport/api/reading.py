"""Reading back what an export recorded. Nothing here needs torch, runs a model or reads a weight."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.analysis.analyze import Subject, analyze_file
from modelexport.analysis.facts import Analysis
from modelexport.analysis.recorded import read_sidecar
from modelexport.api.opening import SIDECAR, model_path, open_file
from modelexport.graph.edges import edges_of
from modelexport.graph.model_file import open_model
from modelexport.record.provenance import Provenance

if TYPE_CHECKING:
    from modelexport.analysis.compare import Comparison
    from modelexport.analysis.findings import Validation
    from modelexport.analysis.inspection import Inspection


def load(path: str | Path) -> Provenance:
    """What is known about an ONNX file, for exactly the nodes that it has; or a sidecar as it is, without tensors."""
    path = Path(path)
    if path.suffix == SIDECAR:
        return read_sidecar(path)
    opened = _open(path)
    return replace(opened.provenance, edges=edges_of(opened.graph))


def analyze(path: str | Path, filter_tag: str | None = None) -> Analysis:
    """What a file consists of, module by module. `filter_tag` keeps the nodes whose tag contains it."""
    return analyze_file(_open(Path(path)), filter_tag)


def compare(a: str | Path, b: str | Path) -> Comparison:
    """How two files differ, module by module."""
    from modelexport.analysis.compare import Examined, compare_files

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
    from modelexport.analysis.inspection import inspect
    from modelexport.analysis.validate import run_checks

    path = Path(path)
    inspection = inspect(open_model(model_path(path)), path)
    if not repair:
        return run_checks(inspection, check_consistency=check_consistency)
    repaired, written = _repair(inspection, None if output is None else Path(output))
    found = run_checks(inspection, check_consistency=check_consistency)
    return replace(found, repaired=repaired, written=written)


def _repair(inspection: Inspection, output: Path | None) -> tuple[int, str]:
    """How many nodes were given other keys, and the file that they went to; a file that is right is left alone."""
    from modelexport.analysis.repair import repair_keys
    from modelexport.graph.saving import ensure_model_target, save_model

    repaired = repair_keys(inspection.model, inspection.record, inspection.fitted)
    if not repaired and output is None:
        return 0, ""
    target = inspection.path if output is None else output
    ensure_model_target(target)
    save_model(inspection.model, target)
    return repaired, str(target)


def _open(path: Path) -> Subject:
    return open_file(model_path(path)).subject
