"""One row, exported by one exporter, with faults planted in its record: what a worker does.

The file is exported and run once. Faults are planted in memory, one at a time, and held against that run.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure.corpus.models import build, inputs_of, rows_by_name
from measure.job import Job, serve
from measure.planted.faults import FaultPlanter, PlantedFault
from measure.planted.telling import ValueJudge
from measure.results import RowResult, TaskFolder, first_line
from modelexport.api.environment import Clock
from modelexport.api.export import export
from modelexport.api.model_runs import ModelRuns, measure_noise, watch_run
from modelexport.api.options import VerifyOptions
from modelexport.api.prove_attributions import AttributionWitness
from modelexport.api.resynchronized_run import run_resynchronized
from modelexport.api.verify_model import compare_run
from modelexport.capture.onnxruntime.piecewise import PiecewiseRun
from modelexport.capture.tensor_spill import TensorSpill
from modelexport.errors import ModelExportError
from modelexport.graph.file.tagged_file import open_tagged
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.model_source import ModelSource
from modelexport.record.provenance import Provenance
from modelexport.record.results.verification import Tolerance, Verdict
from modelexport.verify.evidence import OTHER_NUMBERS
from modelexport.verify.series import SeenRun

FOUND, LEFT_OPEN, TAKEN_AS_RIGHT = "found", "left open", "taken as right"


@dataclass(frozen=True)
class FaultOutcome:
    """
    tells   whether values can tell that it is a fault
    said    what `verify` made of it
    fault   how it said that the attribution is wrong
    where   the first node and its owners, for readers
    """

    kind: str
    tells: bool
    said: str
    fault: str
    where: str


@dataclass(frozen=True)
class PlantedRow(RowResult):
    """What was found in one file; `refusal` says why there is none."""

    faults: tuple[FaultOutcome, ...] = ()
    refusal: str = ""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> PlantedRow:
        return cls(**{**content, "faults": tuple(FaultOutcome(**fault) for fault in content["faults"])})


def perform(job: Job, folder: TaskFolder) -> None:
    (name,), exporters = job.subject, job.tasks
    for exporter in exporters:
        with folder.running(exporter), tempfile.TemporaryDirectory() as scratch:
            try:
                result = plant_in_row(name, exporter, Path(scratch))
            except ModelExportError as error:
                result = PlantedRow(name, exporter, refusal=first_line(error.message))
            folder.write(exporter, result)


def plant_in_row(name: str, exporter: str, folder: Path) -> PlantedRow:
    row = rows_by_name()[name]
    model = build(row)
    inputs = inputs_of(row, model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export(model, folder / "model.onnx", inputs=inputs, exporter=exporter, no_check=True)
        file = open_tagged(folder / "model.onnx")
        run = ModelRuns(file, VerifyOptions(ModelSource(model, inputs)), Clock(None)).first
        with TensorSpill() as spill:
            watched = watch_run(run, spill, seed=0)
            rounding = measure_noise(run, watched, spill, seed=0)
            finding = compare_run(file, PiecewiseRun(file, often=False), run.arguments, watched, rounding, Tolerance())
        seen = SeenRun(watched.run, watched.samples, finding.seen, finding.rounds)
        trouble = ""
        if finding.divergence is not None:
            seen, trouble = run_resynchronized(file, run, seen, seed=0), OTHER_NUMBERS
        witness = AttributionWitness(file, seen, run, trouble=trouble, seed=0)
        record = file.provenance
        proof = witness.prove(record)
        made = {name: sample for name, sample in seen.seen.items() if name not in seen.exchanged}
        judge = ValueJudge(file.graph, record, made, watched.run, watched.samples)
        wrong = (Verdict.CONTRADICTED, Verdict.UNATTRIBUTED)
        keys = {node.key for node in proof.nodes if node.verdict not in wrong}
        faults = FaultPlanter(file.graph, record, keys, f"{name} {exporter}").draw()
        return PlantedRow(name, exporter, tuple(_try_fault(fault, record, witness, judge) for fault in faults))


def _try_fault(fault: PlantedFault, record: Provenance, witness: AttributionWitness, judge: ValueJudge) -> FaultOutcome:
    planted = fault.plant(record)
    judged = witness.judge_nodes(planted, fault.owners)
    if not any(node.verdict is Verdict.CONTRADICTED for node in judged):
        judged = [node for node in witness.prove(planted).nodes if node.key in fault.owners]
    contradicted = [node for node in judged if node.verdict is Verdict.CONTRADICTED]
    is_open = any(node.verdict is Verdict.NOT_PROVABLE for node in judged)
    said = FOUND if contradicted else LEFT_OPEN if is_open else TAKEN_AS_RIGHT
    key, owners = next(iter(fault.owners.items()))
    true = record.nodes[key].attribution.owners
    where = f"{record.nodes[key].op_type} {key}: {_list_calls(true)} ─► {_list_calls(owners)}"
    kind = str(contradicted[0].fault) if contradicted else ""
    return FaultOutcome(fault.kind, judge.tells(fault), said, kind, where)


def _list_calls(calls: tuple[ModuleCall, ...]) -> str:
    return " + ".join(str(call) or "(model)" for call in calls)


if __name__ == "__main__":
    serve(perform)
