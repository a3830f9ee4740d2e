"""One row, exported by one exporter and verified: a worker runs `python -m corpus.attempt ROW EXPORTER FILE`."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import modelexport as mx
from measure.corpus.building import build, inputs_of
from measure.corpus.manifest import Row, read_rows
from measure.corpus.outcome import Outcome, Proof, Result
from measure.corpus.results import write_result
from modelexport.errors import ExportFailed, ModelUnrepeatable, RuntimeFailed
from modelexport.record.check import OutputCheck
from modelexport.record.verification import AttributionProof, NodeProof, Verdict, Verification

# Messages name the file. Without a folder before it, they are the same on every machine.
_FILE = Path("model.onnx")


def main() -> None:
    name, exporter, target = sys.argv[1:]
    row = {row.name: row for row in read_rows()}[name]
    path = Path(target).absolute()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        result = attempt(row, exporter)
        os.chdir(path.parent)
    write_result(result, path)


def attempt(row: Row, exporter: str) -> Result:
    """Export the row's model into the current folder and verify it."""
    model = build(row)
    inputs = inputs_of(row, model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exported = mx.export(model, _FILE, inputs=inputs, exporter=exporter)
        except ExportFailed as error:
            return Result(row.name, exporter, Outcome.REFUSED, _torch_says(error))
        try:
            found = mx.verify(_FILE, model, inputs=inputs)
        except ModelUnrepeatable as error:
            return Result(row.name, exporter, Outcome.RANDOM, first_line(error.message))
        except RuntimeFailed as error:
            return unrunnable(row.name, exporter, exported.check, error)
        return judged(row.name, exporter, found)


def _torch_says(error: ExportFailed) -> str:
    """torch's reason, without the words of modelexport that name model and exporter."""
    return first_line(error.message.partition(" exporter: ")[2] or error.message)


def unrunnable(name: str, exporter: str, check: OutputCheck | None, error: RuntimeFailed) -> Result:
    """A file that ran when it was written can be run: then it is verify that could not."""
    runs = check is not None and check.ok
    return Result(name, exporter, Outcome.DEFECT if runs else Outcome.UNRUNNABLE, first_line(error.message))


def judged(name: str, exporter: str, found: Verification) -> Result:
    """What verify found, as a result. A wrong tag weighs more than a wrong number: it is this project's own."""
    assert found.proof is not None
    proof = summed(found.proof)
    defects = tuple(_defect(node) for node in found.proof.nodes if node.verdict in _DEFECTS)
    if defects:
        return Result(name, exporter, Outcome.DEFECT, defects[0], proof, defects)
    if not found.numbers_agree:
        return Result(name, exporter, Outcome.DIVERGES, _first_wrong(found), proof)
    if not found.ok:
        return Result(name, exporter, Outcome.DEFECT, "its numbers agree, and verify finds something wrong", proof)
    return Result(name, exporter, Outcome.OK, proof=proof)


_DEFECTS = (Verdict.CONTRADICTED, Verdict.UNATTRIBUTED)


def summed(proof: AttributionProof) -> Proof:
    shown = (Verdict.PROVED, Verdict.ENCLOSED)
    unshown = Counter(node.reason for node in proof.nodes if node.compute and node.verdict not in shown)
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
        open=dict(sorted(unshown.items())),
    )


def _defect(node: NodeProof) -> str:
    claimed, issued = (", ".join(str(call) or "(model)" for call in calls) for calls in (node.claimed, node.issued))
    place = f"{node.op_type} {node.key}"
    return f"{place} is credited to {claimed or 'nobody'}; values say {issued or 'nothing'}: {node.reason}"


def _first_wrong(found: Verification) -> str:
    if found.divergence is not None:
        return ", ".join(str(call) or "(model)" for call in found.divergence.calls)
    return "output " + next(name for name, difference in found.outputs.items() if not difference.agrees)


def first_line(message: str) -> str:
    return message.strip().partition("\n")[0]


if __name__ == "__main__":
    main()
