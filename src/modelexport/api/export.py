"""Export: load, make inputs, run once, export, attribute, write, check. `_Export.run` is the story, step by step.

    forward with hooks ─► Hierarchy          which module calls there are          capture/hierarchy
    torch.onnx.export  ─► graph with scopes  which call an exporter names          capture/dynamo, capture/torchscript
    strategies         ─► Provenance         one attribution for each node         attribute/judge
    embed, save        ─► file.onnx          record in the metadata and beside it  graph/file

The file is the one that plain `torch.onnx.export` writes, metadata aside.
https://docs.pytorch.org/docs/stable/onnx.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.api.environment import Clock, Progress, need_torch, tool_versions
from modelexport.api.options import (
    EXPORTERS,
    ExportOptions,
    ensure_known,
    ensure_opset,
    parse_embedding,
    parse_fx_graphs,
    parse_tag_policy,
)
from modelexport.api.signals import Recorded, SignalOptions, record_signals
from modelexport.api.writing import WrittenFiles, write_tagged
from modelexport.attribute.judge import (
    AttributionInput,
    AttributionResult,
    attribute_graph,
    disambiguate_calls,
    find_ambiguous_calls,
)
from modelexport.attribute.strategies import CATALOGUE, NAMES, strategies_named
from modelexport.errors import UserError
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.file.writing import ensure_model_target
from modelexport.graph.types import dynamic_axes_of
from modelexport.record.model_source import ModelSource
from modelexport.record.provenance import Origin, Provenance
from modelexport.record.results.files import ExportResult
from modelexport.record.signals import OutputCheck, Signals

if TYPE_CHECKING:
    import torch

    from modelexport.capture.arguments import Exported, ExportRequest
    from modelexport.capture.export import PreparedModel, TracedRun


def export(  # noqa: PLR0913 - the keywords are the command line's options
    model: torch.nn.Module | str | Path,
    output: str | Path,
    *,
    inputs: object = None,
    task: str | None = None,
    exporter: str = "dynamo",
    strategy: str = "enhanced_semantic",
    opset: int | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    seed: int = 0,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    text: str | None = None,
    image: str | Path | None = None,
    input: Sequence[str] = (),
    input_specs: str | Path | None = None,
    static: bool = False,
    dynamic: bool = False,
    external_data: bool | None = None,
    torch_nn: str = "exceptions",
    torch_nn_exception: Sequence[str] = (),
    tag_policy: str = "default",
    keep: Sequence[str] = (),
    drop: Sequence[str] = (),
    embed: str = "full",
    names: str = "torch",
    strip_exporter_metadata: bool = False,
    no_check: bool = False,
    atol: float = 1e-4,
    rtol: float = 1e-4,
    jit_graph: str | Path | None = None,
    fx_graph: str | None = None,
    verbose: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Export a model to ONNX so that every node can be traced to the module that produced it.

    model   a live `nn.Module`, a folder, a hub id, or `package.module:callable`
    inputs  keyword inputs, a tensor or a tuple of them, or the path of an .npz file; made where none are given
    The other keywords are the options of `modelexport export`.
    """
    options = ExportOptions(
        exporter=ensure_known("exporter", exporter, EXPORTERS),
        strategy=ensure_known("strategy", strategy, NAMES),
        opset=opset,
        static=static,
        dynamic=dynamic,
        external_data=external_data,
        policy=parse_tag_policy(tag_policy, torch_nn, torch_nn_exception, keep, drop),
        embed=parse_embedding(embed, names, strip_exporter_metadata),
        check=not no_check,
        atol=atol,
        rtol=rtol,
        verbose=verbose,
        fx_graph=parse_fx_graphs(fx_graph),
        jit_graph=None if jit_graph is None else Path(jit_graph),
    )
    # Whatever can be wrong with the options is said before the model is loaded, which may take minutes.
    ensure_opset(opset)
    if not (atol >= 0 and rtol >= 0):
        raise UserError(f"tolerances are not negative: atol {atol:g}, rtol {rtol:g}", "Give numbers from 0 on.")
    if static and dynamic:
        raise UserError("--static and --dynamic exclude each other", "Choose one of them.")
    path = Path(output)
    ensure_model_target(path)
    # torch is imported behind this line only: every other verb must start without it.
    need_torch("exporting")
    from modelexport.capture.export import prepare_model

    source = ModelSource(
        model,
        inputs,
        task,
        dtype,
        device,
        seed,
        trust_remote_code,
        allow_pickle,
        text,
        image,
        input,
        input_specs,
        static,
    )
    clock = Clock(progress)
    prepared = prepare_model(source, clock.step)
    return _Export(prepared, path, options, clock).run()


class _Export:
    """One export; each method is one step."""

    def __init__(self, prepared: PreparedModel, path: Path, options: ExportOptions, clock: Clock) -> None:
        self.prepared = prepared
        self.path = path
        self.options = options
        self.clock = clock

    def run(self) -> ExportResult:
        with self.clock.step("trace"):
            run = self._trace()
        with self.clock.step("export"):
            request, exported = self._export(run)
        with self.clock.step("attribute"):
            recorded = self._record(run, exported)
            verdict = self._attribute(run, exported, request, recorded.signals)
            verdict = self._settle(run, exported, verdict)
        with self.clock.step("write"):
            written = self._write(exported.model, verdict.provenance, self._graph_texts(run, recorded))
        with self.clock.step("check"):
            check, remarks = self._check(run, exported.model, request)
        notes = (*self.prepared.notes, *run.notes, *exported.notes, *recorded.notes, *verdict.notes, *remarks)
        return ExportResult(self.path, written.files, written.provenance, check, notes, self.clock.seconds)

    def _trace(self) -> TracedRun:
        from modelexport.capture.export import trace_model

        return trace_model(self.prepared.module, self.prepared.inputs)

    def _export(self, run: TracedRun) -> tuple[ExportRequest, Exported]:
        from modelexport.capture.arguments import ExportRequest
        from modelexport.capture.export import export_traced

        request = ExportRequest(
            axes={} if self.options.static else self.prepared.axes,
            must_dynamic=self.options.dynamic,
            opset=self.options.opset,
            verbose=self.options.verbose,
        )
        return request, export_traced(run, self.options.exporter, request)

    def _record(self, run: TracedRun, exported: Exported) -> Recorded:
        options = SignalOptions(self.options.fx_graph)
        return record_signals(strategies_named(self.options.strategy), run, exported.model, exported.scopes, options)

    def _attribute(
        self, run: TracedRun, exported: Exported, request: ExportRequest, signals: Signals
    ) -> AttributionResult:
        from modelexport.capture.export import export_unfolded_graph

        graph = exported.model.graph
        look_behind = None if exported.before is not None else lambda: export_unfolded_graph(run, request)
        scene = AttributionInput(graph, run.hierarchy, signals, exported.before, look_behind)
        tools = tool_versions()
        origin = Origin(self.options.strategy, exported.exporter, graph.fingerprint, self.prepared.source, tools)
        verdict = attribute_graph(scene, origin)
        return replace(verdict, provenance=replace(verdict.provenance, policy=self.options.policy))

    def _settle(self, run: TracedRun, exported: Exported, verdict: AttributionResult) -> AttributionResult:
        """Which call it was, where names leave it open and the strategy may look for more than they say."""
        strategy = CATALOGUE.get(self.options.strategy)
        # `all` has asked `htp` already; a strategy with a run of its own stands by it; `universal` only repeats.
        if strategy is None or strategy.needs or not strategy.infers or not find_ambiguous_calls(verdict.provenance):
            return verdict
        judge = CATALOGUE["htp"]
        try:
            recorded = record_signals([judge], run, exported.model, exported.scopes, SignalOptions())
        except UserError:
            return verdict  # values cannot be had; a guess stays a guess
        graph = exported.model.graph
        origin = replace(verdict.provenance.origin, strategy=judge.name)
        shown = attribute_graph(AttributionInput(graph, run.hierarchy, recorded.signals), origin).provenance
        return replace(verdict, provenance=disambiguate_calls(verdict.provenance, shown))

    def _graph_texts(self, run: TracedRun, recorded: Recorded) -> dict[Path, str]:
        """The intermediate graphs that were asked for, by the file that each goes to."""
        made = {kind: capture.text for kind, capture in recorded.fx.items() if kind in self.options.fx_graph}
        texts = {self.path.with_suffix(f".{kind}.txt"): text for kind, text in made.items() if text}
        if self.options.jit_graph is not None:
            from modelexport.capture.torchscript import jit_graph_text

            texts[self.options.jit_graph] = jit_graph_text(run.model, run.arguments)
        return texts

    def _write(self, model: ModelFile, provenance: Provenance, texts: Mapping[Path, str]) -> WrittenFiles:
        options = self.options
        return write_tagged(
            model, provenance, self.path, options.embed, external_data=options.external_data, texts=texts
        )

    def _check(
        self, run: TracedRun, model: ModelFile, request: ExportRequest
    ) -> tuple[OutputCheck | None, tuple[str, ...]]:
        if not self.options.check:
            unverified = "whether axes are dynamic was not verified: --no-check"
            return None, (unverified,) if self.options.dynamic else ()
        from modelexport.capture.export import OutputChecker, runtime_installed

        if not runtime_installed():
            return None, ("outputs not compared with PyTorch: onnxruntime is not installed",)
        checker = OutputChecker(self.path, run, self.options.atol, self.options.rtol)
        if not checker.can_run:
            return None, ("outputs not compared with PyTorch: ONNX Runtime takes no bfloat16 from outside",)
        check = checker.check()
        if not check.ok:
            return check, ()
        frozen = checker.frozen_sizes(dynamic_axes_of(model.proto, request.axes))
        if frozen and self.options.dynamic:
            return replace(check, ok=False, message=frozen), ()
        return check, tuple(remark for remark in (frozen, checker.frozen_values()) if remark)
