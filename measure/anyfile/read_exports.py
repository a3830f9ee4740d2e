"""One model and exporter, read back without its record: what a worker of `anyfile` does.

The tasks are what becomes of the file before it is read:

    plain               nothing: the export as torch writes it
    no node names       names and metadata of nodes are gone
    parameters          all names are gone but those of parameters
    ort:all, int8, …    a tool is run on it
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnx

from measure.anyfile.exports import Export, NotMade, load_export, load_made
from measure.anyfile.plain_files import keep_parameter_names, strip_node_names, strip_record
from measure.anyfile.scoring import Miss, Score, Verdict, score_record
from measure.job import Job, serve
from measure.results import TaskFolder
from measure.workers import BUILD
from modelexport.attribute.sources.find import find_hierarchy
from modelexport.graph.index import index_model

EXPORTS = BUILD / "anyfile-exports"
PLAIN = "plain"
UNNAMED = "no node names"
PARAMETERS = "parameters"
TOOLS = ("ort:all", "onnxslim", "int8", "opset:21")
TASKS = (PLAIN, UNNAMED, PARAMETERS, *TOOLS)
# Stored to be looked into; the counts are of all.
_MOST_MISSES = 300


@dataclass(frozen=True)
class ReadResult:
    """What was found in one file.

    refusal  why there is no such file; everything else is empty then
    sources  that spoke, as the record names them
    seconds  that finding the hierarchy took
    misses   some nodes that were not answered right
    """

    row: str
    exporter: str
    task: str
    refusal: str = ""
    score: Score = field(default_factory=Score)
    sources: str = ""
    seconds: float = 0.0
    misses: tuple[Miss, ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ReadResult:
        misses = tuple(Miss(**{**miss, "verdict": Verdict(miss["verdict"])}) for miss in content["misses"])
        return cls(**{**content, "score": Score(**content["score"]), "misses": misses})


def perform(job: Job, folder: TaskFolder) -> None:
    (row, exporter), tasks = job.subject, job.tasks
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    for task in tasks:
        # A tool may bring the process down.
        with folder.running(task):
            folder.write(task, read_export(row, exporter, task, EXPORTS / f"{row}-{exporter}"))


def read_export(row: str, exporter: str, task: str, folder: Path) -> ReadResult:
    """
    folder  that keeps the exports of this row and exporter
    """
    try:
        export = load_export(row, exporter, folder)
        if task in TOOLS:
            export = load_made(task, folder)
    except NotMade as error:
        return ReadResult(row, exporter, task, refusal=str(error))
    model = strip_record(export.model)
    if task == UNNAMED:
        model = strip_node_names(model)
    elif task == PARAMETERS:
        model = keep_parameter_names(model, export.record.hierarchy.tensor_owners.keys())
    return _judge_file(ReadResult(row, exporter, task), model, export)


def _judge_file(result: ReadResult, model: onnx.ModelProto, export: Export) -> ReadResult:
    graph, named = index_model(model), index_model(export.model)
    begin = time.perf_counter()
    answers = find_hierarchy(graph)
    seconds = time.perf_counter() - begin
    # Stripping keeps the order of nodes, and may take their names.
    true_keys = {node.key: other.key for node, other in zip(graph.nodes, named.nodes, strict=True)}
    score, misses = score_record(answers, export.record, true_keys)
    head = (result.row, result.exporter, result.task)
    return ReadResult(
        *head,
        score=score,
        sources=answers.origin.exporter,
        seconds=round(seconds, 4),
        misses=tuple(misses[:_MOST_MISSES]),
    )


if __name__ == "__main__":
    serve(perform)
