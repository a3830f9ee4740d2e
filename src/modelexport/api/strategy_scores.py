"""All strategies side by side on one file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.analysis.scores import Dispute, Score, Scores
from modelexport.api.attribute import Judged
from modelexport.api.foreign import Source, judge_file
from modelexport.api.judging import Verdict
from modelexport.api.surroundings import Clock, Progress
from modelexport.record.provenance import NodeEntry, Provenance
from modelexport.resolve.merge import Agreement, agreement, disagreements
from modelexport.strategies.catalogue import ALL

if TYPE_CHECKING:
    import torch


def compare_strategies(  # noqa: PLR0913 - the keywords are the command line's options
    file: str | Path,
    model: torch.nn.Module | str | Path,
    *,
    inputs: object = None,
    task: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    seed: int = 0,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    text: str | None = None,
    image: str | Path | None = None,
    input: Sequence[str] = (),
    input_specs: str | Path | None = None,
    progress: Progress | None = None,
) -> Scores:
    """What each strategy says of a file that was made from `model`, and where they contradict each other."""
    clock = Clock(progress)
    source = Source(
        model, inputs, task, dtype, device, seed, trust_remote_code, allow_pickle, text, image, input, input_specs
    )
    verdict = judge_file(Path(file), source, ALL, clock).verdict
    return scores_of(verdict, str(file), clock.seconds["trace"] + clock.seconds["record"])


def scores_of(verdict: Verdict, path: str, recording: float) -> Scores:
    provenance = verdict.provenance
    scores = tuple(score_of(judged, provenance) for judged in verdict.judged)
    entries = provenance.nodes.values()
    split = [entry for entry in entries if disagreements(entry.attribution, provenance.hierarchy)]
    disputes = tuple(_dispute(entry, verdict.judged) for entry in split)
    return Scores(path, provenance, scores, disputes, recording, verdict.notes)


def score_of(judged: Judged, answers: Provenance) -> Score:
    """How one strategy's claims stand to the answers."""
    claims = judged.claims.nodes
    standing = Counter(
        agreement(claim, answers.nodes[key].attribution, answers.hierarchy) for key, claim in claims.items()
    )
    return Score(
        judged.strategy,
        Counter(claim.confidence for claim in claims.values()),
        standing[Agreement.SAME],
        standing[Agreement.LESS],
        standing[Agreement.OTHER],
        judged.seconds,
    )


def _dispute(entry: NodeEntry, judged: Sequence[Judged]) -> Dispute:
    said = [item.claims.nodes[entry.key] for item in judged if entry.key in item.claims.nodes]
    return Dispute(entry, tuple(said))
