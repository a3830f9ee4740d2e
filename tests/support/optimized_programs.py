"""Programs of torch's exporter, and what its optimizer makes of them in either of two ways."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import onnx_ir as ir
import pytest
import torch

import modelexport as mx
from modelexport.capture.linear_optimizer import REWRITER, linear_rewriting
from modelexport.capture.recorded_lineage import RewriteRecorder
from modelexport.graph.index import index_model
from modelexport.record.lineage import Lineage


class _Stopped(BaseException):
    """The program is there, and the rest of the export is of no interest. No Exception, as those are explained."""


@dataclass(frozen=True)
class Optimized:
    """A graph after the optimizer as it would be written, and what was written down while the optimizer worked."""

    written: bytes
    lineage: Lineage


def program_of(model: torch.nn.Module, inputs: object, exporter: str = "dynamo") -> ir.Model:
    """What `modelexport export` would give to torch's optimizer."""
    held: list[ir.Model] = []

    def hold(program: torch.onnx.ONNXProgram) -> None:
        held.append(program.model)
        raise _Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.onnx.ONNXProgram, "optimize", hold)
        with pytest.raises(_Stopped):
            mx.export(model, "never-written.onnx", inputs=inputs, exporter=exporter, no_check=True)
    return held[0]


def optimize_both_ways(model: ir.Model) -> tuple[Optimized, Optimized]:
    """By onnxscript alone, and with our replacements; the model itself stays as it is."""
    assert not REWRITER.find_unknown()
    proto = ir.to_proto(model)
    return _optimized(ir.from_proto(proto), nullcontext()), _optimized(ir.from_proto(proto), linear_rewriting())


def _optimized(model: ir.Model, way: AbstractContextManager[None]) -> Optimized:
    before = index_model(ir.to_proto(model))
    recorder = RewriteRecorder(model)
    with recorder.recording(), way:
        torch.onnx.ONNXProgram(model, None).optimize()
    after = ir.to_proto(model)
    return Optimized(after.SerializeToString(deterministic=True), recorder.lineage(before, index_model(after)))
