"""Export of one file: trace, export, attribute, write, check. `ExportRun.run` is the story, step by step.

    forward with hooks ─► Hierarchy          which module calls there are          capture/hierarchy
    torch.onnx.export  ─► graph with scopes  which call an exporter names          capture/dynamo, capture/torchscript
    strategies         ─► Provenance         one attribution for each node         attribute/judge
    embed, save        ─► file.onnx          record in the metadata and beside it  graph/file

The file is the one that plain `torch.onnx.export` writes, metadata aside.
https://docs.pytorch.org/docs/stable/onnx.html
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.api.asked_and_done import check_export
from modelexport.api.environment import Clock, tool_versions
from modelexport.api.options import ExportOptions
from modelexport.api.signals import Recorded, SignalOptions, record_signals
from modelexport.api.writing import write_tagged
from modelexport.attribute.judge import (
    AttributionInput,
    AttributionResult,
    attribute_graph,
    disambiguate_calls,
    find_ambiguous_calls,
    find_guesses,
)
from modelexport.attribute.strategies import CATALOGUE, Need, strategies_named
from modelexport.errors import RuntimeFailed, UserError
from modelexport.graph.file.atomic import ensure_room
from modelexport.graph.file.declared import refer_to_checkpoint
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.file.tagged_file import open_tagged
from modelexport.graph.file.writing import STAYS, choose_storage
from modelexport.graph.types import dynamic_axes_of
from modelexport.record.provenance import Origin
from modelexport.record.results.files import ExportResult
from modelexport.record.signals import OutputCheck, Signals

if TYPE_CHECKING:
    from modelexport.capture.arguments import Exported, ExportRequest
    from modelexport.capture.export import PreparedModel, TracedRun
    from modelexport.capture.output_check import OutputChecker


@dataclass(frozen=True)
class ExportRun:
    """One export; each method is one step, and `run` has them in their order."""

    prepared: PreparedModel
    path: Path
    options: ExportOptions
    clock: Clock

    def run(self) -> ExportResult:
        """From the prepared model to the written and checked file.

        The model is traced before it is exported: hooks are to see the plain forward on real tensors, and dynamo runs
        it on fake ones.
        """
        from modelexport.capture.export import count_bytes, trace_model

        options = self.options
        if options.weights:
            # Long before it is written: an export of many gigabytes takes hours.
            ensure_room(self.path, count_bytes(self.prepared.module))
        else:
            self._ensure_nothing_runs()
        with self.clock.step("trace"):
            run = trace_model(self.prepared.module, self.prepared.inputs)
        with self.clock.step("export"):
            request, exported = self._export(run)
        with self.clock.step("attribute"):
            wanted = strategies_named(options.strategy)
            recorded = record_signals(wanted, run, exported.model, exported.scopes, SignalOptions(options.fx_graph))
            scene = self._scene(run, exported, request, recorded.signals)
            verdict = self._settle(run, exported, scene, attribute_graph(scene, self._origin(exported)))
        with self.clock.step("write"):
            provenance, model = replace(verdict.provenance, policy=options.policy), exported.model
            if self.prepared.checkpoint is not None:
                model = refer_to_checkpoint(model, self.prepared.checkpoint, self.path)
            storage = choose_storage(model, options.external_data, options.shard_size) if options.weights else STAYS
            texts = self._graph_texts(run, recorded)
            written = write_tagged(model, provenance, self.path, options.embed, storage=storage, texts=texts)
        # Last, and on the written file: a check in memory would not notice what saving it does.
        with self.clock.step("check"):
            check, remarks = self._check(run, exported.model, request) if options.weights else (None, ())
        unmet = tuple(check_export(open_tagged(self.path), options, written.provenance.hierarchy))
        notes = (*self.prepared.notes, *run.notes, *exported.notes, *recorded.notes, *verdict.notes, *remarks)
        return ExportResult(self.path, written.files, written.provenance, check, notes, self.clock.seconds, unmet)

    def _ensure_nothing_runs(self) -> None:
        """Without weights there are no values to judge by."""
        needs = {need for strategy in strategies_named(self.options.strategy) for need in strategy.needs}
        if needs & {Need.TRACE, Need.VALUES}:
            raise UserError(
                f"the strategy {self.options.strategy} judges by values of a run, and --no-weights has none",
                "Use --strategy enhanced_semantic, or leave --no-weights out.",
            )

    def _export(self, run: TracedRun) -> tuple[ExportRequest, Exported]:
        from modelexport.capture.arguments import ExportRequest
        from modelexport.capture.export import export_traced

        request = ExportRequest(
            axes={} if self.options.static else self.prepared.axes,
            must_dynamic=self.options.dynamic,
            optimize=self.options.optimize,
            opset=self.options.opset,
            verbose=self.options.verbose,
        )
        return request, export_traced(run, self.options.exporter, request)

    def _scene(self, run: TracedRun, exported: Exported, request: ExportRequest, signals: Signals) -> AttributionInput:
        from modelexport.capture.export import export_unfolded_graph

        graph = exported.model.graph
        # Constant folding removes nodes that carried a scope; the unfolded graph is exported only if it is asked for.
        look_behind = None if exported.before is not None else lambda: export_unfolded_graph(run, request)
        return AttributionInput(graph, run.hierarchy, signals, exported.before, exported.lineage, look_behind)

    def _origin(self, exported: Exported) -> Origin:
        graph, model = exported.model.graph, self.prepared.source
        return Origin(self.options.strategy, exported.exporter, graph.fingerprint, model, tool_versions())

    def _settle(
        self, run: TracedRun, exported: Exported, scene: AttributionInput, verdict: AttributionResult
    ) -> AttributionResult:
        """What names leave open, if the strategy may look for more than they say.

        A block that is called three times gives three sets of nodes with one and the same scope, and a scripted
        function gives nodes without any. Values of a run tell whose they are; that takes another run of the model and
        of the file, so it is made only for such models.
        """
        strategy = CATALOGUE.get(self.options.strategy)
        # `all` has asked `htp` already; a strategy with a run of its own stands by it; `universal` only repeats.
        if strategy is None or strategy.needs or not strategy.infers or not self.options.weights:
            return verdict
        guesses = find_guesses(scene.graph, verdict.judged[0].claims.nodes)
        if not guesses and not find_ambiguous_calls(verdict.provenance):
            return verdict
        judge = CATALOGUE["htp"]
        try:
            recorded = record_signals([judge], run, exported.model, exported.scopes, SignalOptions())
        except UserError:
            return verdict  # values cannot be had; a guess stays a guess
        origin = self._origin(exported)
        case = AttributionInput(scene.graph, run.hierarchy, recorded.signals)
        shown = attribute_graph(case, replace(origin, strategy=judge.name))
        if guesses:
            verdict = attribute_graph(replace(scene, by_value=shown.judged[0].claims), origin)
        return replace(verdict, provenance=disambiguate_calls(verdict.provenance, shown.provenance))

    def _graph_texts(self, run: TracedRun, recorded: Recorded) -> dict[Path, str]:
        """The intermediate graphs that were asked for, by the file that each goes to."""
        captures = {kind: capture for kind, capture in recorded.fx.items() if kind in self.options.fx_graph}
        texts = {self.path.with_suffix(f".{kind}.txt"): item.text for kind, item in captures.items() if item.text}
        if self.options.jit_graph is not None:
            from modelexport.capture.torchscript import jit_graph_text

            texts[self.options.jit_graph] = jit_graph_text(run.model, run.arguments)
        return texts

    def _check(
        self, run: TracedRun, model: ModelFile, request: ExportRequest
    ) -> tuple[OutputCheck | None, tuple[str, ...]]:
        """Run the file beside the model, then at other sizes, branches and values: exporters freeze them silently.

        A size that the file refuses is an error only for those who insisted on dynamic axes; others get a remark.
        """
        if not self.options.check:
            unverified = "whether axes are dynamic was not verified: --no-check"
            return None, (unverified,) if self.options.dynamic else ()
        from modelexport.capture.output_check import OutputChecker, runtime_installed

        if not runtime_installed():
            return None, ("outputs not compared with PyTorch: onnxruntime is not installed",)
        checker = OutputChecker(self.path, run, self.options.tolerance, model.proto)
        try:
            check = checker.check()
        except RuntimeFailed as error:  # the file may well run on another machine
            return None, (f"outputs not compared with PyTorch: {error.message}. {error.hint}",)
        # Wrong numbers at the given sizes say nothing new at others.
        if not check.ok or self.prepared.others:
            return self._check_others(checker, check) if check.ok else check, ()
        remarks: list[str] = []
        for frozen in checker.find_frozen(dynamic_axes_of(model.proto, request.axes)):
            if not frozen.refused or self.options.dynamic:
                return replace(check, ok=False, message=frozen.message), tuple(remarks)
            remarks = remarks or [frozen.message]  # one size that is refused is as good as many
        return check, (*remarks, *checker.undecided)

    def _check_others(self, checker: OutputChecker, check: OutputCheck) -> OutputCheck:
        """At the other sizes that came with the model: a file that generates is run at many."""
        for inputs in self.prepared.others:
            wrong = checker.differ(inputs)
            if wrong:
                return replace(check, ok=False, message=wrong)
        return check
