"""Deep models: how the time of an export grows with the number of layers, with tags and without.

BERT of width 32, exported by dynamo with tags and by plain `torch.onnx.export`, in one process, alternating; medians of
CPU time. `optimizer` is the part of it that `ONNXProgram.optimize` takes. Plain export tries each rewrite rule with two
outputs on the whole graph at every node; with tags it is tried nearby (capture/linear_optimizer.py), which gives the
same graph. The output check is off, because plain export has none.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch
from tests.support.optimized_programs import optimize_both_ways, program_of
from transformers import BertConfig, BertModel

import modelexport as mx
from measure.corpus.models import build, inputs_of
from measure.corpus.rows import Outcome, Row, read_rows
from measure.pages import Table
from measure.strategies.judged_exports import export_plainly
from modelexport.capture.isolation import replace_attributes
from modelexport.capture.linear_optimizer import REWRITER, SIGNATURE

LIMITS: Mapping[int, float] = {24: 0.85, 48: 0.6, 96: 0.4}
COLUMNS = ("layers", "nodes", "plain s", "tagged s", "ratio", "limit", "optimizer, plain s", "optimizer, tagged s")
_WARM_UP = 2
_AXES = {0: "batch", 1: "sequence"}


@dataclass(frozen=True)
class Times:
    """CPU seconds of one export, and of the optimizer within it."""

    whole: float
    optimizer: float


def measure_deep_exports(runs: int = 3) -> Table:
    _measure_depth(_WARM_UP, 1)
    rows = []
    holds = True
    for layers, limit in LIMITS.items():
        sys.stderr.write(f"deep exports: {layers} layers\n")
        plain, tagged, nodes = _measure_depth(layers, runs)
        ratio = tagged.whole / plain.whole
        holds &= ratio <= limit
        seconds = (f"{plain.whole:.1f}", f"{tagged.whole:.1f}")
        optimizer = (f"{plain.optimizer:.2f}", f"{tagged.optimizer:.2f}")
        rows.append((str(layers), f"{nodes:,}", *seconds, f"{ratio:.2f}", f"{limit:.2f}", *optimizer))
    unknown = (*REWRITER.find_unknown(), *SIGNATURE.find_unknown())
    notes = (f"Not known, and left as it is: {', '.join(unknown)}",) if unknown else ()
    return Table("Deep models", (__doc__ or "").strip(), COLUMNS, tuple(rows), holds, notes)


def _measure_depth(layers: int, runs: int) -> tuple[Times, Times, int]:
    """Of a plain export and of one with tags, and the nodes of the file."""
    model, inputs = _bert(layers)
    exports: Mapping[str, Callable[[Path], object]] = {
        "plain": lambda path: export_plainly(model, inputs, path, "dynamo", dict.fromkeys(inputs, _AXES)),
        "tagged": lambda path: mx.export(model, path, inputs=inputs, exporter="dynamo", no_check=True),
    }
    times: dict[str, list[Times]] = {name: [] for name in exports}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        for _ in range(runs):
            for name, export in exports.items():
                times[name].append(_time_export(export, path))
        nodes = len(onnx.load(path, load_external_data=False).graph.node)
    return _median(times["plain"]), _median(times["tagged"]), nodes


def _median(times: list[Times]) -> Times:
    whole, optimizer = ([getattr(time, name) for time in times] for name in ("whole", "optimizer"))
    return Times(statistics.median(whole), statistics.median(optimizer))


def _time_export(export: Callable[[Path], object], path: Path) -> Times:
    gc.collect()
    with _timed_optimizer() as spent:
        start = time.process_time()
        export(path)
        return Times(time.process_time() - start, sum(spent))


@contextmanager
def _timed_optimizer() -> Iterator[list[float]]:
    spent: list[float] = []

    def with_clock(optimize: Callable[[torch.onnx.ONNXProgram], None]) -> Callable[[torch.onnx.ONNXProgram], None]:
        def optimize_on_the_clock(program: torch.onnx.ONNXProgram) -> None:
            start = time.process_time()
            optimize(program)
            spent.append(time.process_time() - start)

        return optimize_on_the_clock

    with replace_attributes([(torch.onnx.ONNXProgram, "optimize", with_clock)]):
        yield spent


_SAME_TEXT = """\
Whether the optimizer writes the same graph with rewrite rules tried nearby as by onnxscript alone: the whole corpus.

Every row that torch can export, up to its optimizer; then each program is optimized both ways. The files must be equal
to the byte, and so must the lineage that is recorded meanwhile. `seconds` are CPU time of the optimizer in all of them;
models of the corpus have few layers."""
_NO_PROGRAM = (Outcome.REFUSED, Outcome.CRASHED, Outcome.TIMED_OUT)


@dataclass(frozen=True)
class _Comparison:
    """What became of the program of one row."""

    nodes: int
    equal: bool
    plain: float
    nearby: float


def measure_same_graphs() -> Table:
    rows, different = [], []
    for exporter in ("dynamo", "transformers"):
        compared: list[_Comparison] = []
        for row in read_rows():
            if exporter in row.exporters and row.expected[exporter].outcome not in _NO_PROGRAM:
                sys.stderr.write(f"same graphs: {row.name}, {exporter}\n")
                compared.append(_compare_ways(row, exporter))
                if not compared[-1].equal:
                    different.append(f"{row.name}, {exporter}")
        equal = sum(each.equal for each in compared)
        nodes = sum(each.nodes for each in compared)
        plain, nearby = sum(each.plain for each in compared), sum(each.nearby for each in compared)
        rows.append((exporter, str(len(compared)), f"{nodes:,}", str(equal), f"{plain:.1f}", f"{nearby:.1f}"))
    columns = ("exporter", "programs", "nodes", "equal", "seconds, onnxscript alone", "seconds, nearby")
    return Table("The same graphs", _SAME_TEXT, columns, tuple(rows), not different, tuple(different))


def _compare_ways(row: Row, exporter: str) -> _Comparison:
    model = build(row)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = program_of(model, inputs_of(row, model), exporter)
        with _timed_optimizer() as spent:
            plain, nearby = optimize_both_ways(program)
    nodes = len(onnx.ModelProto.FromString(nearby.written).graph.node)
    return _Comparison(nodes, plain == nearby, *spent)


def _bert(layers: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=layers, hidden_size=32, num_attention_heads=4, intermediate_size=64, vocab_size=100
    )
    model = BertModel(config).eval()
    # Equal weights would be stored once, and take the optimizer another way than those of a trained model.
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    ids = torch.arange(14).reshape(2, 7)
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
