"""Models of the corpus that torch refuses: how many of them transformers' exporter can export.

    model         torch refuses by       transformers' exporter
    gemma3        dynamo                 ok
    longformer    dynamo                 refused   GuardOnDataDependentSymNode: …

Exported and verified like rows of the corpus, each in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from measure.corpus.corpus_page import read_known
from measure.corpus.corpus_run import verification
from measure.corpus.rows import Outcome, Result
from measure.generation.targets import Target
from measure.job import Job
from measure.pages import Table, percent
from measure.workers import Workers

EXPORTER = "transformers"
_TASK = "verify"
_LIMIT = 600.0
# Of what is exported, numbers may be wrong or change with every run: both are listed.
_EXPORTED = (Outcome.OK, Outcome.DIVERGES, Outcome.UNRUNNABLE, Outcome.RANDOM, Outcome.DEFECT)
_TEXT = (
    "Attempts of the corpus (`docs/measured/corpus.md`) that torch refuses, made again with "
    "`export --exporter transformers`, and verified. Compute nodes are those that make floats from the model's inputs."
)
_REASON_LENGTH = 160


def measure_part(folder: Path) -> tuple[Table, tuple[Target, ...]]:
    refused = find_refused(read_known().by_key.values())
    workers = Workers(verification(_LIMIT), folder, jobs=1, limit=_LIMIT)
    jobs = [Job((name, EXPORTER), (_TASK,)) for name in refused]
    results = {result.name: result for _, (result,) in workers.run(jobs)}
    return compose_refused(refused, [results[name] for name in refused])


def find_refused(results: Iterable[Result]) -> dict[str, tuple[str, ...]]:
    """Models that torch refuses, with the exporters that do."""
    refused: dict[str, tuple[str, ...]] = {}
    for result in results:
        if result.outcome is Outcome.REFUSED:
            refused[result.name] = (*refused.get(result.name, ()), result.exporter)
    return refused


def compose_refused(refused: dict[str, tuple[str, ...]], results: Sequence[Result]) -> tuple[Table, tuple[Target, ...]]:
    exported = [result for result in results if result.outcome in _EXPORTED]
    attempts = sum(len(exporters) for exporters in refused.values())
    served = sum(len(refused[result.name]) for result in exported)
    defects = [f"{result.name}: {result.reason}" for result in results if result.outcome is Outcome.DEFECT]
    verified = [result for result in exported if result.proof is not None]
    right = sum(result.outcome is Outcome.OK for result in exported)
    measured = f"{len(exported)} of {len(results)} models, {served} of {attempts} attempts; {right} with right numbers"
    what = f"what torch refuses in the corpus, and `--exporter {EXPORTER}` exports"
    sound = "of these files, those that can be verified, with a module for each node and none contradicted"
    targets = (
        Target(what, "listed", measured, holds=True),
        Target(sound, "all", f"{len(verified) - len(defects)} of {len(verified)}", not defects),
    )
    rows = tuple((result.name, ", ".join(refused[result.name]), *_describe(result)) for result in results)
    columns = ("model", "torch refuses", "result", "nodes", "contradicted", "compute shown, %", "reason")
    return Table("What torch refuses", _TEXT, columns, rows, not defects, tuple(defects)), targets


def _describe(result: Result) -> tuple[str, ...]:
    reason = f"`{result.reason[:_REASON_LENGTH].replace('|', '/')}`" if result.reason else ""
    if result.proof is None:
        return str(result.outcome), "", "", "", reason
    proof = result.proof
    share = proof.compute_shown / proof.compute if proof.compute else 1.0
    return str(result.outcome), str(proof.nodes), str(proof.contradicted), percent(share), reason
