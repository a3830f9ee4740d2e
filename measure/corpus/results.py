"""Results as JSON: from a worker to the runner, and kept beside the manifest so that changes show as a diff."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from measure.corpus.outcome import Outcome, Proof, Result

RESULTS = Path(__file__).with_name("results.json")
_TOOLS = ("torch", "transformers", "onnx", "onnxruntime")


@dataclass(frozen=True)
class Results:
    """Everything that is known of the corpus, by row and exporter. `versions` are of the tools that it depends on."""

    versions: Mapping[str, str] = field(default_factory=dict)
    by_attempt: Mapping[tuple[str, str], Result] = field(default_factory=dict)

    def updated(self, results: Iterable[Result]) -> Results:
        """With some attempts made again, and the others as they were."""
        return Results(self.versions, {**self.by_attempt, **{result.key: result for result in results}})

    def only(self, attempts: Iterable[tuple[str, str]]) -> Results:
        """Without the attempts of rows that are no longer there."""
        kept = [key for key in attempts if key in self.by_attempt]
        return Results(self.versions, {key: self.by_attempt[key] for key in kept})


def installed() -> Mapping[str, str]:
    """A local label (`+cpu`) says how a tool was built, not what it does."""
    return {tool: metadata.version(tool).partition("+")[0] for tool in _TOOLS}


def write_result(result: Result, path: Path) -> None:
    path.write_text(json.dumps(asdict(result)), encoding="utf-8")


def read_result(path: Path) -> Result:
    return _result(json.loads(path.read_text(encoding="utf-8")))


def write_results(results: Results, path: Path = RESULTS) -> None:
    """Sorted, a line for each attempt: a diff shows what changed and nothing else."""
    lines = [json.dumps(asdict(results.by_attempt[key]), ensure_ascii=False) for key in sorted(results.by_attempt)]
    versions = json.dumps(results.versions)
    path.write_text(
        f'{{"schema": 1,\n "versions": {versions},\n "results": [\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8"
    )


def read_results(path: Path = RESULTS) -> Results:
    if not path.exists():
        return Results()
    content = json.loads(path.read_text(encoding="utf-8"))
    results = map(_result, content["results"])
    return Results(content["versions"], {result.key: result for result in results})


def _result(content: Mapping[str, Any]) -> Result:
    proof = content["proof"]
    return Result(
        name=content["name"],
        exporter=content["exporter"],
        outcome=Outcome(content["outcome"]),
        reason=content["reason"],
        proof=None if proof is None else Proof(**proof),
        defects=tuple(content["defects"]),
    )
