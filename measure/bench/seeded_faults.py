"""Numeric faults in one module of a file: does `verify` name that module first?

In each of 20 models of the corpus, five modules are chosen at random among those that make a float or own a weight. If
it owns weights, one of them gets noise of 1 % to 30 % of its usual size; else something that the module makes is
multiplied by 1.01 to 1.3. The file is otherwise the same. What is fused belongs to several modules: the fault is found
if some of these are named, and nobody else. A fault that no output shows (in a softmax over one element, say) is none,
and another one is drawn.
"""

from __future__ import annotations

import random
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import modelexport as mx
from measure.bench.report import Table
from measure.corpus.building import build, inputs_of
from measure.corpus.manifest import Row, read_rows
from measure.corpus.outcome import Outcome

MODELS, FAULTS = 20, 5
SMALLEST, LARGEST = 0.01, 0.3
NO_EFFECT = 100.0  # decibels; rounding alone leaves more than 110
EXPORTERS = ("dynamo", "torchscript")


@dataclass(frozen=True)
class Weight:
    """A weight to add noise to."""

    name: str

    def into(self, source: Path, target: Path, chance: random.Random) -> Path:
        model = onnx.load(source)
        tensor = next(item for item in model.graph.initializer if item.name == self.name)
        before = numpy_helper.to_array(tensor)
        noise = np.random.default_rng(chance.getrandbits(32)).standard_normal(before.shape)
        usual = float(np.sqrt(np.mean(np.square(before)))) or 1.0
        after = before + chance.uniform(SMALLEST, LARGEST) * usual * noise
        tensor.CopyFrom(numpy_helper.from_array(after.astype(before.dtype), self.name))
        onnx.save(model, target)
        return target


@dataclass(frozen=True)
class Value:
    """What a node makes, to be multiplied."""

    name: str

    def into(self, source: Path, target: Path, chance: random.Random) -> Path:
        model = onnx.load(source)
        place, maker = next((at, node) for at, node in enumerate(model.graph.node) if self.name in node.output)
        maker.output[list(maker.output).index(self.name)] = "right"
        factor = np.float32(1 + chance.uniform(SMALLEST, LARGEST))
        model.graph.initializer.append(numpy_helper.from_array(np.array(factor), "factor"))
        model.graph.node.insert(place + 1, onnx.helper.make_node("Mul", ["right", "factor"], [self.name]))
        onnx.save(model, target)
        return target


Spoiling = Weight | Value


@dataclass(frozen=True)
class Fault:
    """A weight or a value that was changed, the modules that it belongs to, and those that were named."""

    row: str
    exporter: str
    place: str
    modules: tuple[str, ...]
    named: tuple[str, ...]

    @property
    def found(self) -> bool:
        return bool(self.named) and set(self.named) <= set(self.modules)

    def __str__(self) -> str:
        return f"{self.row}, {self.exporter}: {self.place} of {', '.join(self.modules)}; named: {self.named or 'none'}"


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
    sys.stderr.write(f"seeded faults: {row.name}, {exporter}\n")
    chance = random.Random(row.name)
    model = build(row)
    inputs = inputs_of(row, model)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        record = mx.export(model, path, inputs=inputs, exporter=exporter, no_check=True).provenance
        places = _places(path, record)
        drawn = iter(chance.sample(sorted(places), len(places)))
        found = 0
        while found < FAULTS and (modules := next(drawn, None)) is not None:
            spoil = chance.choice(places[modules])
            faulty = spoil.into(path, Path(folder) / "fault.onnx", chance)
            seen = mx.verify(faulty, model, inputs=inputs, proof=False)
            if seen.divergence is None and min(one.sqnr for one in seen.outputs.values()) > NO_EFFECT:
                continue
            found += 1
            named = () if seen.divergence is None else tuple(call.path for call in seen.divergence.calls)
            at_fault = (*modules, *_fused_with(spoil.name, path, record))
            yield Fault(row.name, exporter, spoil.name, _called(at_fault, record), named)


def _fused_with(name: str, path: Path, record: mx.Provenance) -> tuple[str, ...]:
    """The modules whose work is done by nodes that read a weight, where that is the work of several."""
    readers = [node.output[0] for node in onnx.load(path).graph.node if name in node.input]
    owners = [_paths(record.nodes[key].attribution.owners) for key in readers]
    return tuple(module for paths in owners if len(paths) > 1 for module in paths)


def _places(path: Path, record: mx.Provenance) -> dict[tuple[str, ...], list[Spoiling]]:
    """What can be spoiled, by the modules that it belongs to."""
    graph = onnx.load(path).graph
    found: dict[tuple[str, ...], list[Spoiling]] = {}
    for tensor in graph.initializer:
        owners = record.initializers[tensor.name].owners
        if owners and tensor.data_type == onnx.TensorProto.FLOAT and numpy_helper.to_array(tensor).size > 1:
            found.setdefault(_paths(owners), []).append(Weight(tensor.name))
    weighty = set(found)
    for name in _floats(path):
        modules = _paths(record.nodes[name].attribution.owners)
        if modules and modules not in weighty:
            found.setdefault(modules, []).append(Value(name))
    return found


def _floats(path: Path) -> Iterator[str]:
    """Values that nodes compute from the inputs and that are floats, as far as the file says."""
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    typed = {
        value.name for value in model.graph.value_info if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    }
    dependent = {value.name for value in model.graph.input}
    for node in model.graph.node:
        if node.op_type != "Shape" and not dependent.isdisjoint(node.input):
            dependent.update(node.output)
            if node.output[0] in typed:
                yield node.output[0]


def _paths(owners: Iterable[mx.ModuleCall]) -> tuple[str, ...]:
    return tuple(sorted({owner.path for owner in owners}))


def _called(modules: tuple[str, ...], record: mx.Provenance) -> tuple[str, ...]:
    """The modules that run: a parameter may be held by one that does not, and be used by the one around it."""
    counts = record.hierarchy.call_counts
    return tuple(path if path in counts else path.rpartition(".")[0] for path in modules)
