"""Converters: another version of ONNX, or another number format."""

from __future__ import annotations

from modelexport.tools.models import read_whole, save_ir, write_whole
from modelexport.tools.tool import Job


def onnx_version(job: Job) -> None:
    from onnx import version_converter

    write_whole(version_converter.convert_version(read_whole(job.source), int(job.option)), job.target)


def onnxscript_version(job: Job) -> None:
    import onnx_ir as ir
    from onnxscript import version_converter

    model = ir.load(str(job.source))
    version_converter.convert_version(model, int(job.option))  # in place
    save_ir(model, job.source, job.target)


def half(job: Job) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    write_whole(convert_float_to_float16(read_whole(job.source), keep_io_types=True), job.target)


def half_common(job: Job) -> None:
    from onnxconverter_common import float16

    write_whole(float16.convert_float_to_float16(read_whole(job.source), keep_io_types=True), job.target)


def symbolic_shapes(job: Job) -> None:
    from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

    write_whole(SymbolicShapeInference.infer_shapes(read_whole(job.source), auto_merge=True), job.target)
