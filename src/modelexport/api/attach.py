"""Attach: tag an ONNX file that another tool exported, and compare the strategies on such a file.

Nothing is known of how the file was made, so the model and the file both run on the same inputs, and values tell which
module call issued a node:

    model   encoder.layer.0.fc  ─► tensor t        recorded by hooks (capture/op_trace)
    file    MatMul_17           ─► value  v        run node by node (capture/onnxruntime/piecewise)
    t == v, so MatMul_17 is encoder.layer.0.fc's

Steps: prepare the model with inputs that the file takes, trace it, record signals, judge, write. Without a model, what
the file says of its modules itself is written down (`api/opening`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from modelexport.api.environment import Clock, Progress, need_torch
from modelexport.api.keywords import AttachKeywords
from modelexport.api.opening import ensure_runnable, note_source, open_file
from modelexport.api.options import ensure_known, parse_embedding, parse_tag_policy
from modelexport.api.package import find_one_file, refuse_for_folder
from modelexport.api.prepare_file import fit_dtype, judge_prepared, prepare_for_file
from modelexport.api.writing import write_tagged
from modelexport.attribute.judge import AttributionResult, StrategyResult
from modelexport.attribute.resolve import Agreement, agreement, disagreements
from modelexport.attribute.strategies import ALL, NAMES
from modelexport.capture.memory import running_within
from modelexport.errors import UserError
from modelexport.graph.file.mapped_memory import MemoryUse, limit_memory
from modelexport.graph.file.reading import largest_weight, open_model
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged
from modelexport.graph.file.writing import ensure_model_target
from modelexport.inspect.compare import Dispute, Score, Scores
from modelexport.record.amounts import read_size
from modelexport.record.model_source import ModelSource
from modelexport.record.provenance import Provenance
from modelexport.record.results.files import ExportResult

if TYPE_CHECKING:
    import torch

    from modelexport.api.package import Package


@overload
def attach(
    file: str | Path,
    model: torch.nn.Module | str | Path | None,
    output: str | Path,
    **options: Unpack[AttachKeywords],
) -> ExportResult | Any: ...
@overload
def attach(
    file: Package,
    model: torch.nn.Module | str | Path | None,
    output: str | Path,
    **options: Unpack[AttachKeywords],
) -> Package: ...
def attach(  # noqa: PLR0913 - the keywords are the command line's options
    file: str | Path | Package,
    model: torch.nn.Module | str | Path | None,
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
    force: bool = False,
    memory: int | str | None = None,
    progress: Progress | None = None,
) -> ExportResult | Package:
    """Tag an ONNX file that any tool made from `model`. Nothing but metadata, and names if asked for, is changed.

    file      or a folder that a tool wrote, with several files and a configuration: the result is a `Package`
    force     for a folder: write into one that is not empty
    model     None: modules are what the file itself tells of, by metadata, names and structure; nothing is run, and
              keywords that are about a model are refused
    strategy  `all` asks every one of them, because none is known to suit a file of unknown making
    memory    such as "4GB": model and file run in pieces, and give mapped weights back
    names     `hierarchical` renames nodes after their modules; the default leaves the names of the file
    The other keywords are those of `export`, and mean the same.
    """
    strategy = ensure_known("strategy", strategy, NAMES)
    policy = parse_tag_policy(tag_policy, torch_nn, torch_nn_exception, keep, drop)
    embedding = parse_embedding(embed, names, strip_exporter_metadata)
    target = Path(output)
    clock = Clock(progress)
    source = ModelSource(
        model, inputs, task, dtype, device, seed, trust_remote_code, allow_pickle, text, image, input, input_specs
    )
    if Path(file).is_dir() and model is not None:
        from modelexport.api.attach_package import AttachOptions, attach_package

        refuse_for_folder(file, "--memory", memory)
        return attach_package(Path(file), source, target, AttachOptions(strategy, policy, embedding, force), clock)
    ensure_model_target(target)
    with _running_within(read_size(memory, "--memory"), Path(file), source) as use:
        tagged, provenance, notes = _attribute_nodes(Path(file), source, strategy, clock)
        with clock.step("write"):
            written = write_tagged(tagged, replace(provenance, policy=policy), target, embedding)
    return ExportResult(target, written.files, written.provenance, None, (*notes, *use.notes), clock.seconds)


def _running_within(limit: int | None, path: Path, source: ModelSource) -> AbstractContextManager[MemoryUse]:
    largest = 0 if limit is None else largest_weight(open_model(path))
    # Without a model nothing is run, and torch is not imported.
    return limit_memory(limit, largest) if source.model is None else running_within(limit, largest)


def _attribute_nodes(
    path: Path, source: ModelSource, strategy: str, clock: Clock
) -> tuple[TaggedFile, Provenance, tuple[str, ...]]:
    """The file with its record, and notes: by the model, or by what the file itself says."""
    if source.model is None:
        _ensure_no_model_options(source, strategy)
        return _read_file(path, clock)
    tagged = open_tagged(path)
    ensure_runnable(tagged)
    verdict = judge_file(tagged, source, strategy, clock)
    return tagged, verdict.provenance, verdict.notes


def _ensure_no_model_options(source: ModelSource, strategy: str) -> None:
    """An option about the model would look as if it had been obeyed."""
    unset = ModelSource()
    pairs = ((item.name, getattr(source, item.name), getattr(unset, item.name)) for item in fields(ModelSource))
    given = [name for name, value, default in pairs if _is_given(value, default)]
    given += ["strategy"] if strategy != ALL else []
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise UserError(
            f"{option} is about a model, and none was given", f"Give one (-m MODEL), or leave {option} out."
        )


def _is_given(value: object, default: object) -> bool:
    # Inputs may be arrays, which cannot be compared; of what is repeatable, none at all is nothing.
    return value is not default if default is None else value != default and bool(value or default)


def _read_file(path: Path, clock: Clock) -> tuple[TaggedFile, Provenance, tuple[str, ...]]:
    """What a file says of its modules itself."""
    with clock.step("read"):
        tagged = open_file(path)
    if tagged.believed is None:
        raise UserError(
            f"{path} has a record already, and what the file says by itself is less than that",
            "Give the model to make another (-m MODEL), or remove it first: modelexport strip.",
        )
    return tagged, tagged.believed, note_source(tagged)


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
    """What each strategy says of a file that was made from `model`, and where they contradict each other.

    The answers are those of all of them together; a strategy is scored by how its own claims stand to these.
    """
    clock = Clock(progress)
    source = ModelSource(
        model, inputs, task, dtype, device, seed, trust_remote_code, allow_pickle, text, image, input, input_specs
    )
    path = find_one_file(file)
    tagged = open_tagged(path)
    ensure_runnable(tagged)
    verdict = judge_file(tagged, source, ALL, clock)
    return score_strategies(verdict, str(path), clock.seconds["trace"] + clock.seconds["record"])


def judge_file(file: TaggedFile, source: ModelSource, strategy: str, clock: Clock) -> AttributionResult:
    """Judge a file by a strategy; a model that the file was not made from is an error.

    Two models of one class with other weights have the same modules, and names would fit either: only values tell.
    """
    need_torch("running a model")
    return judge_prepared(file, prepare_for_file(file, fit_dtype(file, source), clock), strategy, clock)


def score_strategies(verdict: AttributionResult, path: str, recording: float) -> Scores:
    provenance, claims = verdict.provenance, [judged.claims.nodes for judged in verdict.judged]
    disputes = tuple(
        Dispute(entry, tuple(by_node[entry.key] for by_node in claims if entry.key in by_node))
        for entry in provenance.nodes.values()
        if disagreements(entry.attribution, provenance.hierarchy)
    )
    scores = tuple(score_strategy(judged, provenance) for judged in verdict.judged)
    return Scores(path, provenance, scores, disputes, recording, verdict.notes)


def score_strategy(judged: StrategyResult, answers: Provenance) -> Score:
    """How one strategy's claims stand to the answers: the same module, one around it, or another."""
    claims, nodes = judged.claims.nodes, answers.nodes
    standing = Counter(agreement(claim, nodes[key].attribution, answers.hierarchy) for key, claim in claims.items())
    confidence = Counter(claim.confidence for claim in claims.values())
    same, less, other_module = (standing[kind] for kind in (Agreement.SAME, Agreement.LESS, Agreement.OTHER))
    return Score(judged.strategy, confidence, same, less, other_module, judged.seconds)
