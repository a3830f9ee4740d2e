"""One family, exported as a package and held against its model: what a worker does.

build/measure/generation/llama/   model/  package/  package.json  verify.json

Decoders are exported for onnxruntime-genai where it takes them, so that one folder serves every comparison.
"""

from __future__ import annotations

import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import modelexport as mx
from measure.corpus.rows import Proof
from measure.corpus.verify_row import count_verdicts
from measure.generation.chain import open_chain
from measure.generation.families import Family, find_family
from measure.generation.family_result import VERIFY, ComponentFigures, FamilyResult
from measure.generation.folders import save_folder
from measure.generation.genai_tokens import compare_tokens
from measure.generation.models import make_example
from measure.generation.networks import KIND, NETWORKS
from measure.generation.unread import find_unread
from measure.generation.witness import first_line, witness_generation, witness_grid
from measure.job import Job, serve
from measure.results import TaskFolder
from modelexport.errors import ModelExportError, TargetUnsuitable
from modelexport.record.results.package_verification import PackageVerification

_GENAI = "genai"
# Of the chain that `verify` runs: the proof of attributions is what is asked for, and it needs no more.
_VERIFIED_TOKENS = 4


def perform(job: Job, folder: TaskFolder) -> None:
    (name,) = job.subject
    kind = KIND if name in NETWORKS else find_family(name).kind
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for task in job.tasks:
            result = FamilyResult(name, kind, task)
            with folder.running(task):
                folder.write(task, measure_task(result, folder.path))


def measure_task(result: FamilyResult, folder: Path) -> FamilyResult:
    """Whatever goes wrong is part of the result; what was known before it stays."""
    measure = verify_family if result.task == VERIFY else measure_networks if result.kind == KIND else measure_family
    known = [result]
    try:
        return measure(result, folder, known.append)
    except Exception as error:  # noqa: BLE001  # what a library raises is the result
        stage = "" if isinstance(error, ModelExportError) else "run: " if known[-1].components else "export: "
        # Messages name files. Without the folder they are the same on every machine.
        reason = f"{stage}{type(error).__name__}: {first_line(error)}".replace(f"{folder}/", "")
        return replace(known[-1], failure=reason)


def measure_family(result: FamilyResult, folder: Path, tell: Callable[[FamilyResult], None]) -> FamilyResult:
    """
    tell  is given what is known so far
    """
    family, source, output = find_family(result.family), folder / "model", folder / "package"
    _clear(source, output)
    save_folder(family, source)
    result = describe_package(*_export(family, source, output, result))
    tell(result)
    example, chain = make_example(family), open_chain(output)
    result = replace(result, generation=witness_generation(chain, example), grid=witness_grid(chain, family, example))
    result = _set_unread(result, find_unread(example.model, result.absent, example.generate))
    if family.kind == "decoder" and not result.genai:
        result = replace(result, genai=compare_tokens(output, example) or "equal")
    return result


def _export(family: Family, source: Path, output: Path, result: FamilyResult) -> tuple[mx.Package, FamilyResult]:
    """For onnxruntime-genai if it takes the model, else for no consumer in particular."""
    start = time.perf_counter()
    if family.kind == "decoder":
        try:
            package = mx.export(source, output, target=_GENAI)
        except TargetUnsuitable as error:
            result = replace(result, genai=f"refused: {first_line(error)}")
            _clear(output)
            start = time.perf_counter()
        else:
            return package, replace(result, seconds=time.perf_counter() - start)
    package = export_folder(source, output)
    return package, replace(result, seconds=time.perf_counter() - start)


def export_folder(source: Path, output: Path, task: str | None = None) -> mx.Package:
    # By its types, `export` without a target returns what one file gives.
    return cast("mx.Package", mx.export(source, output, task=task))


def measure_networks(result: FamilyResult, folder: Path, tell: Callable[[FamilyResult], None]) -> FamilyResult:
    networks, source, output = NETWORKS[result.family], folder / "model", folder / "package"
    _clear(source, output)
    networks.save(source)
    start = time.perf_counter()
    package = export_folder(source, output, networks.task)
    result = describe_package(package, replace(result, seconds=time.perf_counter() - start))
    tell(result)
    result = replace(result, differences=networks.compare(open_chain(output), source))
    return _set_unread(result, networks.find_unread(source, result.absent))


def describe_package(package: mx.Package, result: FamilyResult) -> FamilyResult:
    """
    package  as its export returned it
    """
    provenance = package.provenance
    components = []
    for name, record in provenance.components.items():
        confidences = Counter(entry.attribution.confidence.label for entry in record.nodes.values())
        check = package.exported[name].check
        wrong = "" if check is None or check.ok else first_line(check.message)
        components.append(ComponentFigures(name, len(record.nodes), dict(sorted(confidences.items())), wrong))
    modules = provenance.hierarchy.modules
    two_tags = tuple(path for path in modules if len(set(provenance.tags_of(path).values())) > 1)
    absent = tuple(module.path for module in package.info.absent)
    return replace(result, components=tuple(components), absent=absent, two_tags=two_tags)


def _set_unread(result: FamilyResult, unread: tuple[str, ...]) -> FamilyResult:
    absent = tuple(path for path in result.absent if path not in unread)
    return replace(result, absent=absent, unread=unread)


def verify_family(result: FamilyResult, folder: Path, _: Callable[[FamilyResult], None]) -> FamilyResult:
    """What `verify` proves about the files that were exported before."""
    if not (folder / "package").exists():
        return replace(result, failure="not exported")
    task = NETWORKS[result.family].task if result.kind == KIND else None
    verification = mx.verify_package(
        folder / "package", folder / "model", new_tokens=_VERIFIED_TOKENS, grid=False, task=task
    )
    return replace(result, proof=add_proofs(verification))


def add_proofs(verification: PackageVerification) -> Proof:
    """Verdicts on the nodes of all files together."""
    total: dict[str, Any] = {}
    for component in verification.components.values():
        assert component.proof is not None, "verify was asked for a proof"
        for name, counted in vars(count_verdicts(component.proof)).items():
            if isinstance(counted, int):
                total[name] = total.get(name, 0) + counted
            else:
                total[name] = dict(sorted((Counter(total.get(name, {})) + Counter(counted)).items()))
    return Proof(**total)


def _clear(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    serve(perform)
