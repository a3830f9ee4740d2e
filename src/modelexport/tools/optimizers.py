"""Optimizers: fewer nodes that compute the same."""

from __future__ import annotations

from modelexport.errors import UserError
from modelexport.tools.models import read_whole, write_whole
from modelexport.tools.tool import Job

_LEVELS = {"basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED", "all": "ORT_ENABLE_ALL"}
_SILENT = 4


def ort(job: Job) -> None:
    """ONNX Runtime's own, as it would run the file on this machine's CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, _LEVELS[job.option])
    options.optimized_model_filepath = str(job.target)
    options.log_severity_level = _SILENT
    onnxruntime.InferenceSession(str(job.source), options, providers=["CPUExecutionProvider"])


def transformers(job: Job) -> None:
    from onnxruntime.transformers.optimizer import MODEL_TYPES, optimize_model

    if job.option and job.option not in MODEL_TYPES:
        raise UserError(f"transformers has no option {job.option!r}", f"It knows: {', '.join(MODEL_TYPES)}.")
    kind = {"model_type": job.option} if job.option else {}
    optimized = optimize_model(str(job.source), num_heads=0, hidden_size=0, opt_level=0, **kind)
    optimized.save_model_to_file(str(job.target))


def onnxslim(job: Job) -> None:
    import onnxslim as slim

    write_whole(slim.slim(str(job.source)), job.target)


def onnxsim(job: Job) -> None:
    import onnxsim as sim

    found = sim.simplify(read_whole(job.source))
    write_whole(found[0] if isinstance(found, tuple) else found, job.target)


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
    ir.save(model, str(job.target))
