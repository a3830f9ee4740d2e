"""Quantizers: fewer bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from modelexport.tools.models import read_whole
from modelexport.tools.tool import Feed, Job

if TYPE_CHECKING:
    from onnxruntime.quantization import QuantFormat

# Weights that share a scale; it must be a power of two, and small models have short rows.
_BLOCK = 16


def dynamic(job: Job) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(read_whole(job.source), job.target)  # given a path, it writes a file of its own beside it


def static_qdq(job: Job) -> None:
    from onnxruntime.quantization import QuantFormat

    _static(job, QuantFormat.QDQ)


def static_operators(job: Job) -> None:
    from onnxruntime.quantization import QuantFormat

    _static(job, QuantFormat.QOperator)


def four_bits(job: Job) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(read_whole(job.source), block_size=_BLOCK, is_symmetric=True)
    quantizer.process()
    quantizer.model.save_model_to_file(str(job.target))


def _static(job: Job, form: QuantFormat) -> None:
    from onnxruntime.quantization import quantize_static

    quantize_static(read_whole(job.source), job.target, _Reader(job.feeds), quant_format=form)


class _Reader:
    """Inputs, handed out one after the other as the calibration wants them."""

    def __init__(self, feeds: tuple[Feed, ...]) -> None:
        self._left: Iterator[Feed] = iter(feeds)

    def get_next(self) -> dict[str, Any] | None:
        found = next(self._left, None)
        return None if found is None else dict(found)
