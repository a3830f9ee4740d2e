"""Optimizers: ONNX Runtime's own graph optimizations, its optimizer for transformers, onnxslim, onnxsim, onnxscript.

    ort:all        MatMul, Add, Gelu   →   FusedMatMul, BiasGelu, in the layout of this machine's CPU
    onnxslim       Shape, Gather, Concat of known sizes   →   an initializer

Each is a function of a `Job` that writes the target. To add one, see `catalogue.py`.
https://onnxruntime.ai/docs/performance/model-optimizations/graph-optimizations.html
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modelexport.errors import ExtraMissing, RuntimeFailed, UserError
from modelexport.graph.file.reading import open_model
from modelexport.graph.missing_types import USE_FLOAT32, explain_missing_type
from modelexport.transform.tools.tool import (
    Job,
    copy_model,
    data_beside,
    free_weights,
    is_spread,
    lists_weights_as_inputs,
    read_whole,
    save_ir,
    write_whole,
)

# How far ONNX Runtime optimizes a file before it runs it.
LEVELS = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "none": "ORT_DISABLE_ALL",
}
# Only fatal messages: warnings about optimizations that depend on the machine are no news to whoever asks for them.
_SILENT = 4
# Bytes: smaller tensors stay in the graph, so that shape inference can read axes and sizes without the other file.
_SMALL = 1024


def ort(job: Job) -> None:
    """ONNX Runtime's own, as it would run the file on this machine's CPU."""
    options = saving_options(job.target, job.option, weights_beside=is_spread(job.source))
    if not lists_weights_as_inputs(open_model(job.source).proto):
        _start(job.source, options)
        return
    # It takes weights in and leaves their inputs behind, which nobody could give.
    with copy_model(job.source, job.target.parent, free_weights) as source:
        _start(source, options)


def save_optimized(source: Path, target: Path) -> None:
    """Write the graph that ONNX Runtime runs in the place of a file: all optimizations, on this machine's CPU."""
    options = saving_options(target, "all", weights_beside=True)
    try:
        _start(source, options)
    except Exception as error:
        if missing := explain_missing_type(error, open_model(source).proto):
            raise RuntimeFailed(missing, USE_FLOAT32) from error
        raise RuntimeFailed(
            f"ONNX Runtime cannot load {source}: {str(error).strip().splitlines()[0]}",
            "Try a newer onnxruntime or another opset.",
        ) from error


def saving_options(target: Path, level: str, *, weights_beside: bool = False) -> Any:
    """Options of a session that saves the graph that it really runs.

    weights_beside  in a file of their own, so that a graph with gigabytes of them can be saved
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ExtraMissing.of_runtime(error) from error
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, LEVELS[level])
    options.optimized_model_filepath = str(target)
    options.log_severity_level = _SILENT
    if weights_beside:
        prefix = "session.optimized_model_external_initializers"
        options.add_session_config_entry(f"{prefix}_file_name", data_beside(target))
        options.add_session_config_entry(f"{prefix}_min_size_in_bytes", str(_SMALL))
    return options


def _start(source: Path, options: Any) -> None:
    import onnxruntime

    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def transformers(job: Job) -> None:
    from onnxruntime.transformers.optimizer import MODEL_TYPES, optimize_model

    if job.option and job.option not in MODEL_TYPES:
        raise UserError(f"transformers has no option {job.option!r}", f"It knows: {', '.join(MODEL_TYPES)}.")
    kind = {"model_type": job.option} if job.option else {}
    # Zero heads: it reads their number from the graph. Level 0: ONNX Runtime's own optimizer is another tool here.
    optimized = optimize_model(str(job.source), num_heads=0, hidden_size=0, opt_level=0, **kind)
    optimized.save_model_to_file(str(job.target), use_external_data_format=is_spread(job.source))


def onnxslim(job: Job) -> None:
    import onnxslim as slim

    write_whole(slim.slim(str(job.source)), job.target)


def onnxsim(job: Job) -> None:
    import onnxsim as sim

    simplified = sim.simplify(read_whole(job.source))  # some versions return whether they have checked it, too
    write_whole(simplified[0] if isinstance(simplified, tuple) else simplified, job.target)


def onnxoptimizer(job: Job) -> None:
    import onnxoptimizer as optimizer

    write_whole(optimizer.optimize(read_whole(job.source), optimizer.get_fuse_and_elimination_passes()), job.target)


def onnxscript(job: Job) -> None:
    from onnxscript import optimizer

    write_whole(optimizer.optimize(read_whole(job.source)), job.target)


def ort_fusions(job: Job) -> None:
    import onnx_ir as ir
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    model = ir.load(str(job.source))
    optimize_for_ort(model)  # in place
    save_ir(model, job.source, job.target)
