"""One row, exported by one exporter and verified: what a worker of the corpus does."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import modelexport as mx
from measure.corpus.models import build, inputs_of, rows_by_name
from measure.corpus.rows import Outcome, Proof, Result, Row
from measure.job import Job, serve
from measure.results import TaskFolder, first_line
from modelexport.errors import ExportFailed, ModelUnrepeatable, RuntimeFailed
from modelexport.record.results.verification import AttributionProof, NodeProof, Verdict, Verification
from modelexport.record.signals import OutputCheck

# Messages name the file. Without a folder before it, they are the same on every machine.
_FILE = Path("model.onnx")


def perform(job: Job, folder: TaskFolder) -> None:
    (name, exporter), (task,) = job.subject, job.tasks
    row = rows_by_name()[name]
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        result = verify_row(row, exporter)
        os.chdir(folder.path)
    folder.write(task, result)


def verify_row(row: Row, exporter: str) -> Result:
    """Export the row's model into the current folder and verify it."""
    model = build(row)
    inputs = inputs_of(row, model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exported = mx.export(model, _FILE, inputs=inputs, exporter=exporter)
        except ExportFailed as error:
            return Result(row.name, exporter, Outcome.REFUSED, _refusal_of(error))
        try:
            verification = mx.verify(_FILE, model, inputs=inputs)
        except ModelUnrepeatable as error:
            return Result(row.name, exporter, Outcome.RANDOM, first_line(error.message))
        except RuntimeFailed as error:
            return judge_unrunnable(row.name, exporter, exported.check, error)
        return judge_verification(row.name, exporter, verification)


def _refusal_of(error: ExportFailed) -> str:
    """torch's reason, without the words of modelexport that name model and exporter."""
    return first_line(error.message.partition(" exporter: ")[2] or error.message)


def judge_unrunnable(name: str, exporter: str, check: OutputCheck | None, error: RuntimeFailed) -> Result:
    """A file that ran when it was written can be run: then it is verify that could not."""
    runs = check is not None and check.ok
    return Result(name, exporter, Outcome.DEFECT if runs else Outcome.UNRUNNABLE, first_line(error.message))


def judge_verification(name: str, exporter: str, verification: Verification) -> Result:
    """What verify found, as a result. A wrong tag weighs more than a wrong number: it is this project's own."""
    assert verification.proof is not None
    proof = count_verdicts(verification.proof)
    defects = tuple(_describe_defect(node) for node in verification.proof.nodes if node.verdict in _DEFECTS)
    if defects:
        return Result(name, exporter, Outcome.DEFECT, defects[0], proof, defects)
    if not verification.numbers_agree:
        return Result(name, exporter, Outcome.DIVERGES, _first_wrong(verification), proof)
    # Whether a file is right only for inputs like its sample is measured by `measure branches`.
    if not replace(verification, frozen=()).ok:
        return Result(name, exporter, Outcome.DEFECT, "its numbers agree, and verify finds something wrong", proof)
    return Result(name, exporter, Outcome.OK, proof=proof)


_DEFECTS = (Verdict.CONTRADICTED, Verdict.UNATTRIBUTED)


def count_verdicts(proof: AttributionProof) -> Proof:
    unshown = Counter((node.compute, node.reason) for node in proof.nodes if not node.is_shown)
    counts = proof.counts
    return Proof(
        nodes=len(proof.nodes),
        proved=counts[Verdict.PROVED],
        enclosed=counts[Verdict.ENCLOSED],
        not_provable=counts[Verdict.NOT_PROVABLE],
        contradicted=counts[Verdict.CONTRADICTED],
        unattributed=counts[Verdict.UNATTRIBUTED],
        compute=proof.compute,
        compute_shown=proof.compute_shown,
        open={reason: count for (compute, reason), count in sorted(unshown.items()) if compute},
        open_rest={reason: count for (compute, reason), count in sorted(unshown.items()) if not compute},
        shown_by={str(shown_by): count for shown_by, count in proof.shown_by.items()},
    )


def _describe_defect(node: NodeProof) -> str:
    claimed, issued = (", ".join(str(call) or "(model)" for call in calls) for calls in (node.claimed, node.issued))
    node_name = f"{node.op_type} {node.key}"
    why = f"{node.fault}: {node.reason}" if node.fault else node.reason
    return f"{node_name} is credited to {claimed or 'nobody'}; values say {issued or 'nothing'}: {why}"


def _first_wrong(verification: Verification) -> str:
    if verification.divergence is not None:
        return ", ".join(str(call) or "(model)" for call in verification.divergence.calls)
    return "output " + next(name for name, difference in verification.outputs.items() if not difference.agrees)


if __name__ == "__main__":
    serve(perform)
