"""One model and exporter, through all tools: a worker runs `python -m matrix.attempt ROW EXPORTER FOLDER CHAIN…`.

Every result is a file of its own in the folder, so that a tool that brings the process down costs one result.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from corpus.attempt import first_line
from corpus.building import build, inputs_of
from corpus.manifest import read_rows

import modelexport as mx
from matrix.plan import PREFIX, is_lossy, run_chain
from matrix.score import SHARES, Outcome, Result
from matrix.scoring import Relinked, Scorer, relink_model
from matrix.truth import Values
from matrix.values import run_values
from modelexport.capture.onnxruntime.inputs import SampleRequest, graph_samples
from modelexport.errors import ExportFailed, ModelExportError, RuntimeFailed
from modelexport.graph.file.reading import open_model
from modelexport.graph.file.tagged_file import find_ancestor, open_tagged, outlined_ancestor
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results.verification import Tolerance
from modelexport.transform.tools.tool import read_whole
from modelexport.verify.numbers import measure

Owners = Mapping[str, frozenset[ModuleCall]]

BEFORE = "before.onnx"
# Seconds for one chain. A tool may hang in C, where only the system can end it.
_LIMIT = 300
_SAMPLES = 2
_WRONG = 40


def main() -> None:
    row, exporter, place, *chains = sys.argv[1:]
    folder = Path(place).absolute()
    os.chdir(folder)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    refusal = "" if Path(BEFORE).exists() else _export(row, exporter)
    try:
        subject = None if refusal else Subject(Path(BEFORE))
    except RuntimeFailed as error:
        subject, refusal = None, first_line(error.message)
    for chain in chains:
        refused = Result(row, exporter, chain, Outcome.REFUSED, refusal)
        _write(refused if subject is None else subject.attempt(row, exporter, chain))


def result_path(folder: Path, chain: str) -> Path:
    return folder / f"{chain.replace(':', '-')}.json"


def running_path(folder: Path, chain: str) -> Path:
    """It is there while a tool runs: who finds it afterwards knows which tool brought the process down."""
    return result_path(folder, chain).with_suffix(".running")


def _write(result: Result) -> None:
    result_path(Path(), result.chain).write_text(json.dumps(result.to_json()), encoding="utf-8")


def _export(name: str, exporter: str) -> str:
    """torch's reason if it refuses."""
    row = {row.name: row for row in read_rows()}[name]
    model = build(row)
    try:
        mx.export(model, BEFORE, inputs=inputs_of(row, model), exporter=exporter, no_check=True)
    except ExportFailed as error:
        return first_line(error.message)
    return ""


class Subject:
    """An exported model, ready for tools."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ancestor = find_ancestor(open_tagged(path))
        file = open_model(path)
        graph = file.graph
        self._feeds = tuple(graph_samples(file.proto, graph, SampleRequest(_SAMPLES)))
        self._values = run_values(file, self._feeds[0])
        self._outputs = graph.outputs

    def attempt(self, row: str, exporter: str, chain: str) -> Result:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            try:
                with _tool_runs(chain):
                    made = run_chain(chain, self._path, Path(folder), self._feeds)
                model = read_whole(made)
            except Exception as error:  # noqa: BLE001 - whatever a tool raises is what is to be reported
                return Result(row, exporter, chain, Outcome.FAILED, _told(error, folder))
            return self._judge(Result(row, exporter, chain, Outcome.OK), made, model)

    def _judge(self, result: Result, made: Path, model: onnx.ModelProto) -> Result:
        after: Values = {}
        try:
            ran = run_values(open_model(made), _fed(model, self._feeds[0]))
            outcome, message = self._outputs_of(result.chain, model, ran)
            after = ran if outcome is Outcome.OK else {}
        except ModelExportError as error:
            outcome, message = Outcome.BROKEN, _told(error, str(made.parent))
        scorer = Scorer(self._ancestor, model, (self._values, after), lossy=is_lossy(result.chain))
        scores = {share: scorer.score(share) for share in SHARES}
        planted, alone = self._alone(made, model, owners_of(scorer.named))
        wrong = tuple(scorer.wrong[:_WRONG])
        head = (result.row, result.exporter, result.chain)
        return Result(*head, outcome, message, scores, planted, alone, wrong)

    def _outputs_of(self, chain: str, model: onnx.ModelProto, after: Values) -> tuple[Outcome, str]:
        given = {value.name.removeprefix(PREFIX) for value in model.graph.output}
        for name in given.intersection(self._outputs):
            one, other = self._values.get(name), after.get(name, after.get(PREFIX + name))
            if one is None or other is None or one.dtype.kind != "f" or is_lossy(chain):
                continue
            if one.shape != other.shape:
                return Outcome.CHANGED, f"{name} has the shape {other.shape}, not {one.shape}"
            difference = measure(one, other, Tolerance())
            if not difference.agrees:
                return Outcome.CHANGED, f"{name} differs by {difference.max_abs:.2g}"
        return Outcome.OK, ""

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


def owners_of(found: Relinked) -> Owners:
    return {key: frozenset(entry.attribution.owners) for key, entry in found.record.nodes.items()}


def _fed(model: onnx.ModelProto, feed: Values) -> dict[str, np.ndarray]:
    """What a file is given: by name, or where a tool has renamed its inputs, by place."""
    stored = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in stored]
    return {name: feed[name] if name in feed else list(feed.values())[place] for place, name in enumerate(names)}


@contextlib.contextmanager
def _tool_runs(chain: str) -> Iterator[None]:
    """Tools talk a lot, and may hang."""
    running_path(Path(), chain).touch()
    signal.alarm(_LIMIT)
    nowhere = io.StringIO()
    try:
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            yield
    finally:
        signal.alarm(0)
        running_path(Path(), chain).unlink()


def _told(error: Exception, folder: str) -> str:
    """Without the folder that is another one each time."""
    said = first_line(str(error).replace(f"{folder}/", "").replace(str(Path(folder).absolute()), "")) or "no message"
    return f"{type(error).__name__}: {said[:200]}"


if __name__ == "__main__":
    main()
