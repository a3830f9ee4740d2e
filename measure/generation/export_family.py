"""One family, exported as a package and held against its model: what a worker does.

Decoders are exported for onnxruntime-genai where it takes them, so that one folder serves every comparison.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import modelexport as mx
from measure.generation.chain import open_chain
from measure.generation.families import Family, find_family
from measure.generation.family_result import ComponentFigures, FamilyResult
from measure.generation.folders import save_folder
from measure.generation.genai_tokens import compare_tokens
from measure.generation.models import make_example
from measure.generation.witness import first_line, witness_generation, witness_grid
from measure.results import TaskFolder
from measure.workers import Job, serve
from modelexport.errors import ModelExportError, TargetUnsuitable

_GENAI = "genai"


def perform(job: Job, folder: TaskFolder) -> None:
    (name,), (task,) = job.subject, job.tasks
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder.write(task, measure_family(find_family(name), Path(scratch)))


def measure_family(family: Family, scratch: Path) -> FamilyResult:
    """Everything that is said about a family. What goes wrong is part of the result."""
    result = FamilyResult(family.name, family.kind)
    source, output = scratch / "model", scratch / "package"
    save_folder(family, source)
    try:
        result, package = _export(family, source, output, result)
        result = describe_package(package, result)
        return _witness(family, output, result)
    except ModelExportError as error:
        return replace(result, failure=_without_folder(f"{type(error).__name__}: {first_line(error)}", scratch))
    except Exception as error:  # noqa: BLE001  # what a runtime raises is the result
        stage = "run" if result.components else "export"
        return replace(
            result, failure=_without_folder(f"{stage}: {type(error).__name__}: {first_line(error)}", scratch)
        )


def _export(family: Family, source: Path, output: Path, result: FamilyResult) -> tuple[FamilyResult, mx.Package]:
    """For onnxruntime-genai if it takes the model, else for no consumer in particular."""
    start = time.perf_counter()
    if family.kind == "decoder":
        try:
            package = mx.export(source, output, target=_GENAI)
        except TargetUnsuitable as error:
            result = replace(result, genai=f"refused: {first_line(error)}")
            shutil.rmtree(output, ignore_errors=True)
            start = time.perf_counter()
        else:
            return replace(result, seconds=time.perf_counter() - start), package
    mx.export(source, output)
    return replace(result, seconds=time.perf_counter() - start), mx.open_package(output)


def describe_package(package: mx.Package, result: FamilyResult) -> FamilyResult:
    provenance = package.provenance
    components = []
    for name, record in provenance.components.items():
        confidences = Counter(entry.attribution.confidence.label for entry in record.nodes.values())
        components.append(ComponentFigures(name, len(record.nodes), dict(sorted(confidences.items()))))
    modules = provenance.hierarchy.modules
    two_tags = tuple(path for path in modules if len(set(provenance.tags_of(path).values())) > 1)
    absent = tuple(module.path for module in package.info.absent)
    return replace(result, components=tuple(components), absent=absent, two_tags=two_tags)


def _witness(family: Family, output: Path, result: FamilyResult) -> FamilyResult:
    example, chain = make_example(family), open_chain(output)
    result = replace(result, generation=witness_generation(chain, example), grid=witness_grid(chain, family, example))
    if family.kind == "decoder" and not result.genai:
        result = replace(result, genai=compare_tokens(output, example) or "equal")
    return result


def _without_folder(message: str, scratch: Path) -> str:
    """Messages name files. Without the folder they are the same on every machine."""
    return message.replace(f"{scratch}/", "")


if __name__ == "__main__":
    serve(perform)
