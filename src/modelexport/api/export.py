"""Exporting: load, make inputs, run once, export, attribute, write, check."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from modelexport.api.attribute import Judged, judge_folded, judge_optimized
from modelexport.api.options import EXPORTERS, STRATEGIES, ExportOptions, ExportResult, Progress
from modelexport.errors import ExtraMissing, UnknownName, UserError
from modelexport.graph.atomic import staging
from modelexport.graph.embed import EmbedOptions, Level, Names, embed, rename_nodes, sidecar_path
from modelexport.graph.index import Graph, dynamic_axes_of, index_model
from modelexport.graph.opened import ModelFile
from modelexport.graph.saving import ensure_model_target, stage_model
from modelexport.record.check import OutputCheck
from modelexport.record.document import write_document
from modelexport.record.provenance import Origin, Provenance
from modelexport.record.tags import TORCH_NN_EXCEPTIONS, Scope, TagPolicy, TorchNN
from modelexport.resolve.provenance import absent_modules, build_provenance
from modelexport.strategies.claims import by_initializer, by_node

if TYPE_CHECKING:
    import torch

    from modelexport.capture.exported import Exported, ExportRequest
    from modelexport.capture.session import TracedRun
    from modelexport.capture.source import Prepared

_TOOLS = ("modelexport", "torch", "transformers", "onnx", "onnx-ir", "onnxscript")


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
    verbose: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Export a model to ONNX so that every node can be traced to the module that produced it.

    model   a live `nn.Module`, a folder, a hub id, or `package.module:callable`
    inputs  keyword inputs, a tensor or a tuple of them, or the path of an .npz file; made where none are given
    The other keywords are the options of `modelexport export`.
    """
    options = ExportOptions(
        exporter=_known("exporter", exporter, EXPORTERS),
        strategy=_known("strategy", strategy, STRATEGIES),
        opset=opset,
        static=static,
        dynamic=dynamic,
        external_data=external_data,
        policy=TagPolicy(
            Scope.HF if _known("tag policy", tag_policy, ("default", "hf")) == "hf" else Scope.ANY,
            TorchNN(_known("value for torch_nn", torch_nn, list(TorchNN))),
            tuple(torch_nn_exception) or TORCH_NN_EXCEPTIONS,
            tuple(keep),
            tuple(drop),
        ),
        embed=EmbedOptions(
            Level(_known("embed level", embed, list(Level))),
            Names(_known("kind of names", names, list(Names))),
            strip_exporter_metadata,
        ),
        check=not no_check,
        atol=atol,
        rtol=rtol,
        verbose=verbose,
    )
    _check_opset(opset)
    if not (atol >= 0 and rtol >= 0):
        raise UserError(f"tolerances are not negative: atol {atol:g}, rtol {rtol:g}", "Give numbers from 0 on.")
    if static and dynamic:
        raise UserError("--static and --dynamic exclude each other", "Choose one of them.")
    path = Path(output)
    ensure_model_target(path)
    _need_torch()
    from modelexport.capture.loading import LoadOptions
    from modelexport.capture.source import SourceOptions, prepare

    load = LoadOptions(task, dtype, device, seed, trust_remote_code, allow_pickle)
    source = SourceOptions(load, text, image, tuple(input), input_specs, static)
    clock = _Clock(progress)
    prepared = prepare(model, inputs, source, clock.step)
    return _Export(prepared, path, options, clock).run()


class _Clock:
    """Tells which step is running and remembers how long each one took."""

    def __init__(self, progress: Progress | None) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        if self._progress is not None:
            self._progress(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


class _Export:
    """One export; each method is one step."""

    def __init__(self, prepared: Prepared, path: Path, options: ExportOptions, clock: _Clock) -> None:
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
            provenance = self._attribute(run, exported, request)
        with self.clock.step("write"):
            provenance = self._rename(exported.model, provenance)
            files = self._write(exported.model, provenance)
        with self.clock.step("check"):
            check, remarks = self._check(run, exported.model, request)
        notes = (*self.prepared.notes, *run.notes, *exported.notes, *remarks)
        return ExportResult(self.path, files, provenance, check, notes, self.clock.seconds)

    def _trace(self) -> TracedRun:
        from modelexport.capture.session import trace

        return trace(self.prepared.module, self.prepared.inputs)

    def _export(self, run: TracedRun) -> tuple[ExportRequest, Exported]:
        from modelexport.capture.exported import ExportRequest
        from modelexport.capture.session import export_traced

        request = ExportRequest(
            axes={} if self.options.static else self.prepared.axes,
            must_dynamic=self.options.dynamic,
            opset=self.options.opset,
            verbose=self.options.verbose,
        )
        return request, export_traced(run, self.options.exporter, request)

    def _attribute(self, run: TracedRun, exported: Exported, request: ExportRequest) -> Provenance:
        graph = index_model(exported.model.proto)
        judged = self._judge(graph, run, exported, request)
        origin = Origin(
            self.options.strategy,
            exported.exporter,
            graph.fingerprint,
            self.prepared.source,
            _tool_versions(),
        )
        found = build_provenance(graph, run.hierarchy, by_node(judged.claims), by_initializer(judged.claims), origin)
        owned = {owner.path for entry in found.nodes.values() for owner in entry.attribution.owners}
        owned |= {owner.path for attribution in found.initializers.values() for owner in attribution.owners}
        absent = absent_modules(run.hierarchy, owned, judged.owned_before)
        return replace(found, policy=self.options.policy, absent=absent)

    def _judge(self, graph: Graph, run: TracedRun, exported: Exported, request: ExportRequest) -> Judged:
        if exported.before is not None:
            return judge_optimized(graph, exported.before, run.hierarchy, exported.scopes)
        from modelexport.capture.session import unfolded

        return judge_folded(graph, run.hierarchy, lambda: unfolded(run, request))

    def _rename(self, model: ModelFile, provenance: Provenance) -> Provenance:
        if self.options.embed.names is not Names.HIERARCHICAL:
            return provenance
        names = rename_nodes(model.proto, {key: entry.attribution for key, entry in provenance.nodes.items()})
        return replace(
            provenance, nodes={key: replace(entry, name=names[key]) for key, entry in provenance.nodes.items()}
        )

    def _write(self, model: ModelFile, provenance: Provenance) -> tuple[Path, ...]:
        embed(model.proto, provenance, self.options.embed)
        sidecar = sidecar_path(self.path)
        with staging() as stage:
            files = stage_model(stage, model, self.path, external_data=self.options.external_data)
            stage.write(sidecar, write_document(provenance))
        return (*files, sidecar)

    def _check(
        self, run: TracedRun, model: ModelFile, request: ExportRequest
    ) -> tuple[OutputCheck | None, tuple[str, ...]]:
        if not self.options.check:
            unverified = "whether axes are dynamic was not verified: --no-check"
            return None, (unverified,) if self.options.dynamic else ()
        from modelexport.capture.checking import OutputChecker, Tolerance, runtime_installed

        if not runtime_installed():
            return None, ("outputs not compared with PyTorch: onnxruntime is not installed",)
        checker = OutputChecker(self.path, run, Tolerance(self.options.atol, self.options.rtol))
        if not checker.can_run:
            return None, ("outputs not compared with PyTorch: ONNX Runtime takes no bfloat16 from outside",)
        check = checker.check()
        if not check.ok:
            return check, ()
        frozen = checker.frozen_sizes(dynamic_axes_of(model.proto, request.axes))
        if frozen and self.options.dynamic:
            return replace(check, ok=False, message=frozen), ()
        return check, tuple(remark for remark in (frozen, checker.frozen_values()) if remark)


def _known(kind: str, name: str, names: Sequence[str]) -> str:
    if name not in names:
        raise UnknownName(kind, name, names)
    return name


def _check_opset(opset: int | None) -> None:
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not 1 <= opset <= newest:
        raise UserError(f"there is no opset {opset}", f"This version of onnx knows opsets 1 to {newest}.")


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ExtraMissing(
            "exporting needs torch, which is not installed",
            "Install it with: pip install 'modelexport[export]'",
        ) from error


@cache
def _tool_versions() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name in _TOOLS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
