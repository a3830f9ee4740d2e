"""One model and exporter, through chains of tools: what a worker of the lineage does."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from measure.corpus.models import export_row
from measure.job import Job, serve
from measure.lineage.chains import is_lossy, run_chain
from measure.lineage.repeated import REPEATED, export_repeated
from measure.lineage.scoring import SHARES, Relinked, Scorer, ToolOutcome, ToolResult, relink_model
from measure.lineage.surgery import PREFIX, original_name
from measure.lineage.truth import Values
from measure.lineage.value_comparison import run_values
from measure.results import TaskFolder, first_line
from measure.workers import silence
from modelexport.capture.onnxruntime.inputs import SampleRequest, sample_feeds
from modelexport.errors import ExportFailed, ModelExportError, RuntimeFailed
from modelexport.graph.difference import measure
from modelexport.graph.file.reading import open_model
from modelexport.graph.file.tagged_file import find_ancestor, open_tagged, outlined_ancestor
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results.verification import Tolerance
from modelexport.transform.tools.tool import read_whole

Owners = Mapping[str, frozenset[ModuleCall]]

BEFORE = "before.onnx"
_SAMPLES = 2
_WRONG = 40


def perform(job: Job, folder: TaskFolder) -> None:
    (row, exporter), chains = job.subject, job.tasks
    os.chdir(folder.path)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    refusal = "" if Path(BEFORE).exists() else _export(row, exporter)
    try:
        subject = None if refusal else Subject(Path(BEFORE), folder)
    except RuntimeFailed as error:
        subject, refusal = None, first_line(error.message)
    for chain in chains:
        refused = ToolResult(row, exporter, chain, ToolOutcome.REFUSED, refusal)
        folder.write(chain, refused if subject is None else subject.attempt(row, exporter, chain))


def _export(name: str, exporter: str) -> str:
    """torch's reason if it refuses."""
    try:
        (export_repeated if name in REPEATED else export_row)(name, exporter, Path(BEFORE))
    except ExportFailed as error:
        return first_line(error.message)
    return ""


class Subject:
    """An exported model, ready for tools."""

    def __init__(self, path: Path, tasks: TaskFolder) -> None:
        self._path, self._tasks = path, tasks
        self._ancestor = find_ancestor(open_tagged(path))
        file = open_model(path)
        graph = file.graph
        self._feeds = tuple(sample_feeds(file.proto, graph, SampleRequest(_SAMPLES)))
        self._values = run_values(file, self._feeds[0])
        self._outputs = graph.outputs

    def attempt(self, row: str, exporter: str, chain: str) -> ToolResult:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            try:
                with self._tasks.running(chain), silence():
                    made = run_chain(chain, self._path, Path(folder), self._feeds)
                model = read_whole(made)
            except Exception as error:  # noqa: BLE001 - whatever a tool raises is what is to be reported
                return ToolResult(row, exporter, chain, ToolOutcome.FAILED, _describe_error(error, folder))
            return self._judge(ToolResult(row, exporter, chain, ToolOutcome.OK), made, model)

    def _judge(self, result: ToolResult, made: Path, model: onnx.ModelProto) -> ToolResult:
        after: Values = {}
        try:
            ran = run_values(open_model(made), _fed(model, self._feeds[0]))
            outcome, message = self._outputs_of(result.chain, model, ran)
            after = ran if outcome is ToolOutcome.OK else {}
        except ModelExportError as error:
            outcome, message = ToolOutcome.BROKEN, _describe_error(error, str(made.parent))
        scorer = Scorer(self._ancestor, model, (self._values, after), lossy=is_lossy(result.chain))
        scores = {share: scorer.score(share) for share in SHARES}
        planted, alone = self._alone(made, model, owners_of(scorer.named))
        wrong = tuple(scorer.wrong[:_WRONG])
        head = (result.row, result.exporter, result.chain)
        return ToolResult(*head, outcome, message, scores, planted, alone, wrong)

    def _outputs_of(self, chain: str, model: onnx.ModelProto, after: Values) -> tuple[ToolOutcome, str]:
        given = {original_name(value.name) for value in model.graph.output}
        for name in given.intersection(self._outputs):
            expected, computed = self._values.get(name), after.get(name, after.get(PREFIX + name))
            if expected is None or computed is None or expected.dtype.kind != "f" or is_lossy(chain):
                continue
            if expected.shape != computed.shape:
                return ToolOutcome.CHANGED, f"{name} has the shape {computed.shape}, not {expected.shape}"
            difference = measure(expected, computed, Tolerance())
            if not difference.agrees:
                return ToolOutcome.CHANGED, f"{name} differs by {difference.max_abs:.2g}"
        return ToolOutcome.OK, ""

    @staticmethod
    def _alone(made: Path, model: onnx.ModelProto, theirs: Owners) -> tuple[bool, tuple[int, int]]:
        """From the record inside the file: whether it is there, and how many nodes get the same modules from it.

        theirs  the modules of each node, from the file before
        """
        try:
            planted = outlined_ancestor(open_tagged(made))
        except ModelExportError:
            return False, (0, 0)
        mine = owners_of(relink_model(planted, model))
        return True, (sum(mine[key] == theirs[key] for key in theirs), len(theirs))


def owners_of(relinked: Relinked) -> Owners:
    return {key: frozenset(entry.attribution.owners) for key, entry in relinked.record.nodes.items()}


def _fed(model: onnx.ModelProto, feed: Values) -> dict[str, np.ndarray]:
    """What a file is given: by name, or where a tool has renamed its inputs, by place."""
    stored = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in stored]
    given = {name: original_name(name) for name in names}
    return {name: feed[given[name]] if given[name] in feed else [*feed.values()][i] for i, name in enumerate(names)}


def _describe_error(error: Exception, folder: str) -> str:
    """Without the folder that is another one each time."""
    said = first_line(str(error).replace(f"{folder}/", "").replace(str(Path(folder).absolute()), "")) or "no message"
    return f"{type(error).__name__}: {said[:200]}"


if __name__ == "__main__":
    serve(perform)
