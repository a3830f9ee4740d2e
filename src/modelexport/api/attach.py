"""Tagging a file that another tool exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.api.choices import embed_options, known
from modelexport.api.choices import tag_policy as build_policy
from modelexport.api.foreign import Source, judge_file
from modelexport.api.options import ExportResult
from modelexport.api.surroundings import Clock, Progress
from modelexport.api.writing import write_tagged
from modelexport.graph.saving import ensure_model_target
from modelexport.strategies.catalogue import ALL, NAMES

if TYPE_CHECKING:
    import torch


def attach(  # noqa: PLR0913 - the keywords are the command line's options
    file: str | Path,
    model: torch.nn.Module | str | Path,
    output: str | Path,
    *,
    inputs: object = None,
    task: str | None = None,
    strategy: str = ALL,
    dtype: str | None = None,
    device: str = "cpu",
    seed: int = 0,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    text: str | None = None,
    image: str | Path | None = None,
    input: Sequence[str] = (),
    input_specs: str | Path | None = None,
    torch_nn: str = "exceptions",
    torch_nn_exception: Sequence[str] = (),
    tag_policy: str = "default",
    keep: Sequence[str] = (),
    drop: Sequence[str] = (),
    embed: str = "full",
    names: str = "torch",
    strip_exporter_metadata: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Tag an ONNX file that any tool made from `model`. Nothing but metadata, and names if asked for, is changed."""
    policy = build_policy(tag_policy, torch_nn, torch_nn_exception, keep, drop)
    embedding = embed_options(embed, names, strip_exporter_metadata)
    target = Path(output)
    ensure_model_target(target)
    clock = Clock(progress)
    source = Source(
        model, inputs, task, dtype, device, seed, trust_remote_code, allow_pickle, text, image, input, input_specs
    )
    judgement = judge_file(Path(file), source, known("strategy", strategy, NAMES), clock)
    with clock.step("write"):
        provenance = replace(judgement.verdict.provenance, policy=policy)
        written = write_tagged(judgement.file, provenance, target, embedding)
    return ExportResult(target, written.files, written.provenance, None, judgement.verdict.notes, clock.seconds)
