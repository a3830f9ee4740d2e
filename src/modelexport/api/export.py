"""Export: load a model, make its inputs, and write one ONNX file (export_run.py) or a package (export_package.py).

    export(model, "bert.onnx")                                          one forward pass, without a cache
    export(model, "qwen3.onnx", task="text-generation-with-past")       one decoder with its cache
    export(model, "qwen3/", target="genai")                             a folder that a consumer loads: a Package

An output that ends in `.onnx` is a file; every other one is a folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from modelexport.api.environment import Clock, Progress, need_torch
from modelexport.api.export_package import PackageOptions, export_entry, export_package, is_entry_task
from modelexport.api.export_run import ExportRun
from modelexport.api.keywords import ExportKeywords
from modelexport.api.options import (
    EXPORTERS,
    ExportOptions,
    ensure_known,
    parse_embedding,
    parse_fx_graphs,
    parse_tag_policy,
    parse_tolerance,
)
from modelexport.api.package import Package, refuse_for_folder
from modelexport.attribute.strategies import NAMES
from modelexport.errors import UserError
from modelexport.graph.file.writing import LEAST_SHARD, ensure_model_target
from modelexport.record.amounts import read_size
from modelexport.record.model_source import ModelSource
from modelexport.record.results.files import ExportResult

if TYPE_CHECKING:
    import torch


# Without a target, the ending of `output` decides: a folder is a Package, which a type checker cannot see.
@overload
def export(
    model: torch.nn.Module | str | Path, output: str | Path, *, target: None = None, **options: Unpack[ExportKeywords]
) -> ExportResult | Any: ...
@overload
def export(
    model: torch.nn.Module | str | Path, output: str | Path, *, target: str, **options: Unpack[ExportKeywords]
) -> Package: ...
def export(  # noqa: PLR0913 - the keywords are the command line's options
    model: torch.nn.Module | str | Path,
    output: str | Path,
    *,
    inputs: object = None,
    task: str | None = None,
    target: str | None = None,
    force: bool = False,
    exporter: str | None = None,
    strategy: str = "enhanced_semantic",
    opset: int | None = None,
    no_weights: bool = False,
    no_optimize: bool = False,
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
    shard_size: int | str | None = None,
    torch_nn: str = "exceptions",
    torch_nn_exception: Sequence[str] = (),
    tag_policy: str = "default",
    keep: Sequence[str] = (),
    drop: Sequence[str] = (),
    embed: str = "full",
    names: str = "torch",
    strip_exporter_metadata: bool = False,
    no_check: bool = False,
    atol: float | None = None,
    rtol: float | None = None,
    jit_graph: str | Path | None = None,
    fx_graph: str | None = None,
    verbose: bool = False,
    progress: Progress | None = None,
) -> ExportResult | Package:
    """Export a model to ONNX so that every node can be traced to the module that produced it.

    model     a live `nn.Module`, a folder, a hub id, or `package.module:callable`
    output    an .onnx file, or a folder: then the result is a `Package`
    inputs    keyword inputs, a tensor or a tuple of them, or the path of an .npz file; made where none are given
    exporter  None: `dynamo` for one forward pass, `transformers` for models that generate
    The other keywords are the options of `modelexport export`.
    """
    options = ExportOptions(
        exporter=ensure_known("exporter", exporter or "dynamo", EXPORTERS),
        strategy=ensure_known("strategy", strategy, NAMES),
        opset=opset,
        dtype=dtype,
        weights=not no_weights,
        optimize=not no_optimize,
        static=static,
        dynamic=dynamic,
        external_data=external_data,
        shard_size=read_size(shard_size, "--shard-size", LEAST_SHARD),
        policy=parse_tag_policy(tag_policy, torch_nn, torch_nn_exception, keep, drop),
        embed=parse_embedding(embed, names, strip_exporter_metadata),
        check=not no_check,
        tolerance=parse_tolerance(atol, rtol),
        verbose=verbose,
        fx_graph=parse_fx_graphs(fx_graph),
        jit_graph=None if jit_graph is None else Path(jit_graph),
    )
    path = Path(output)
    source = ModelSource(model, inputs, task, dtype, device, seed, trust_remote_code, allow_pickle, text, image, input)
    source = replace(source, input_specs=input_specs, static=static, weights=not no_weights)
    if no_weights and (path.suffix != ".onnx" or is_entry_task(task)):
        raise UserError(
            "--no-weights writes one file of one forward pass: a model that generates is run to find its inputs",
            "Give an .onnx file as output, and no task of generation.",
        )
    clock = Clock(progress)
    if path.suffix != ".onnx":
        refuse_for_folder(path, "--shard-size", shard_size)
        return export_package(source, path, PackageOptions(options, target, force, exporter is None), clock)
    if target is not None:
        raise UserError(f"a target is a folder of files, and {output} is one file", "Give a folder as output.")
    ensure_model_target(path)
    if is_entry_task(task):
        return export_entry(source, path, PackageOptions(options, None, force, exporter is None), clock)
    # torch is imported behind this line only: every other verb must start without it.
    need_torch("exporting")
    from modelexport.capture.export import prepare_model

    return ExportRun(prepare_model(source, clock.step), path, options, clock).run()
