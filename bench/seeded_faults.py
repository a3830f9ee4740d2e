"""Numeric faults in one module of a file: does `verify` name that module first?

In each of 20 models of the corpus, five modules are chosen at random among those that own a weight in the file. One
weight of the module gets noise of a random size between 1 % and 30 % of its usual size; the file is otherwise the same.
A fused weight belongs to several modules; one of them has to be named, and nobody else.
"""

from __future__ import annotations

import random
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from corpus.building import build, inputs_of
from corpus.manifest import Row, read_rows
from corpus.outcome import Outcome
from onnx import numpy_helper

import modelexport as mx
from bench.report import Table

MODELS, FAULTS = 20, 5
SMALLEST, LARGEST = 0.01, 0.3
EXPORTERS = ("dynamo", "torchscript")


@dataclass(frozen=True)
class Fault:
    """A weight that was changed, the modules that it belongs to, and those that were named."""

    row: str
    exporter: str
    weight: str
    modules: tuple[str, ...]
    named: tuple[str, ...]

    @property
    def found(self) -> bool:
        return bool(self.named) and set(self.named) <= set(self.modules)

    def __str__(self) -> str:
        return f"{self.row}, {self.exporter}: {self.weight} of {', '.join(self.modules)}; named: {self.named or 'none'}"


def measure() -> Table:
    faults = [fault for row, exporter in _chosen() for fault in _planted(row, exporter)]
    rows = []
    for exporter in EXPORTERS:
        own = [fault for fault in faults if fault.exporter == exporter]
        models = len({fault.row for fault in own})
        rows.append((exporter, str(models), f"{sum(fault.found for fault in own)} of {len(own)}"))
    missed = tuple(str(fault) for fault in faults if not fault.found)
    columns = ("exporter", "models", "right module named first")
    return Table("Seeded faults", (__doc__ or "").strip(), columns, tuple(rows), not missed, missed)


def _chosen() -> Iterator[tuple[Row, str]]:
    """Half of the models by each exporter, spread over the corpus."""
    rows = [row for row in read_rows() if not row.hand_made]
    random.Random(0).shuffle(rows)
    found = dict.fromkeys(EXPORTERS, 0)
    for place, row in enumerate(rows):
        exporter = EXPORTERS[place % len(EXPORTERS)]
        able_to = row.expected[exporter].outcome is Outcome.OK
        if found[exporter] < MODELS // len(EXPORTERS) and able_to:
            found[exporter] += 1
            yield row, exporter


def _planted(row: Row, exporter: str) -> Iterator[Fault]:
    chance = random.Random(row.name)
    model = build(row)
    inputs = inputs_of(row, model)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        record = mx.export(model, path, inputs=inputs, exporter=exporter, no_check=True).provenance
        weights = _weights_by_module(path, record)
        for modules in chance.sample(sorted(weights), min(FAULTS, len(weights))):
            weight = chance.choice(weights[modules])
            _spoil(path, Path(folder) / "fault.onnx", weight, chance)
            divergence = mx.verify(Path(folder) / "fault.onnx", model, inputs=inputs, proof=False).divergence
            named = () if divergence is None else tuple(call.path for call in divergence.calls)
            yield Fault(row.name, exporter, weight, _called(modules, record), named)


def _weights_by_module(path: Path, record: mx.Provenance) -> dict[tuple[str, ...], list[str]]:
    found: dict[tuple[str, ...], list[str]] = {}
    for tensor in onnx.load(path).graph.initializer:
        owners = record.initializers[tensor.name].owners
        if owners and tensor.data_type == onnx.TensorProto.FLOAT and numpy_helper.to_array(tensor).size > 1:
            found.setdefault(tuple(sorted({owner.path for owner in owners})), []).append(tensor.name)
    return found


def _called(modules: tuple[str, ...], record: mx.Provenance) -> tuple[str, ...]:
    """The modules that run: a parameter may be held by one that does not, and be used by the one around it."""
    counts = record.hierarchy.call_counts
    return tuple(path if path in counts else path.rpartition(".")[0] for path in modules)


def _spoil(source: Path, target: Path, weight: str, chance: random.Random) -> None:
    model = onnx.load(source)
    tensor = next(item for item in model.graph.initializer if item.name == weight)
    before = numpy_helper.to_array(tensor)
    noise = np.random.default_rng(chance.getrandbits(32)).standard_normal(before.shape)
    usual = float(np.sqrt(np.mean(np.square(before)))) or 1.0
    after = before + chance.uniform(SMALLEST, LARGEST) * usual * noise
    tensor.CopyFrom(numpy_helper.from_array(after.astype(before.dtype), weight))
    onnx.save(model, target)
