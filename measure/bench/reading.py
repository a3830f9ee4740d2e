"""Reading: the time until a command is up, and what verbs that read take for a large file."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tests.support.architectures import build
from transformers import BertConfig, BertModel

import modelexport as mx
from measure.bench.synthetic_models import write_layers
from measure.pages import Table

_STARTUP_TEXT = """\
Processor time until a command is up and done, against `python -c "import onnx"`: medians of processes, alternating. The
file is BERT of two layers by TorchScript. Byte code is there, as it is where a package is installed."""
IMPORT = 'python -c "import onnx"'
STARTUP_LIMITS = {"--help": 0.3, "analyze FILE": 1.5, "validate FILE": 1.5}


def measure_startup(runs: int = 15) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bert.onnx"
        mx.export(build("bert"), path, exporter="torchscript", no_check=True)
        asked = {verb: _command(*verb.replace("FILE", str(path)).split()) for verb in STARTUP_LIMITS}
        medians = _median_seconds({IMPORT: [sys.executable, "-c", "import onnx"], **asked}, runs)
    base = medians.pop(IMPORT)
    rows = [(f"`{IMPORT}`", f"{base:.3f}", "", "")]
    for verb, seconds in medians.items():
        rows.append((f"`modelexport {verb}`", f"{seconds:.3f}", f"{seconds / base:.2f}", f"{STARTUP_LIMITS[verb]:g}"))
    holds = all(seconds / base <= STARTUP_LIMITS[verb] for verb, seconds in medians.items())
    return Table("Start-up", _STARTUP_TEXT, ("command", "seconds", "ratio", "limit"), tuple(rows), holds)


_READING_TEXT = """\
What verbs that read take for a large file, against `python -c "import onnx; onnx.load(FILE)"`: processor time of whole
processes, medians, alternating; start-up is part of both sides.

`layers` is a synthetic file of transformer layers with its record; `BERT` is one of 48 layers by dynamo, with keys on
all nodes and everything that the exporter writes beside them. Limits are those of `layers`."""
NODES, LAYERS = 14_000, 48
READING_LIMITS = {
    "analyze FILE": 2.0,
    "query FILE op=Softmax": 3.0,
    "validate FILE": 3.7,
    "cost FILE": 7.8,
    "view FILE -o PAGE": 7.4,
    "diff FILE FILE": 5.2,
}
_LOAD = "onnx.load"


def measure_reading_time(runs: int = 5) -> Table:
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        layers, bert = Path(folder) / "layers.onnx", Path(folder) / "bert.onnx"
        write_layers(NODES, layers)
        _export_deep_bert(bert)
        of_layers, of_bert = (_ratios(path, Path(folder) / "page.html", runs) for path in (layers, bert))
    for verb, limit in READING_LIMITS.items():
        rows.append((f"`{verb}`", f"{of_layers[verb]:.1f}", f"{limit:.1f}", f"{of_bert[verb]:.1f}"))
    holds = all(of_layers[verb] <= limit for verb, limit in READING_LIMITS.items())
    return Table("Time to read", _READING_TEXT, ("command", "layers", "limit", "BERT"), tuple(rows), holds)


def _export_deep_bert(path: Path) -> None:
    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=LAYERS, hidden_size=32, num_attention_heads=4, intermediate_size=64, vocab_size=100
    )
    ids = torch.arange(14).reshape(2, 7)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    mx.export(BertModel(config).eval(), path, inputs=inputs, no_check=True)


def _ratios(path: Path, page: Path, runs: int) -> dict[str, float]:
    words = {"FILE": str(path), "PAGE": str(page)}
    asked = {verb: _command(*(words.get(word, word) for word in verb.split())) for verb in READING_LIMITS}
    load = [sys.executable, "-c", f"import onnx; onnx.load({str(path)!r})"]
    medians = _median_seconds({_LOAD: load, **asked}, runs)
    return {verb: medians[verb] / medians[_LOAD] for verb in READING_LIMITS}


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "modelexport", *arguments]


def _median_seconds(commands: Mapping[str, Sequence[str]], runs: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in commands}
    for run in range(runs + 1):
        for name, command in commands.items():
            seconds = _processor_seconds(command)
            if run:  # the first round writes byte code
                times[name].append(seconds)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def _processor_seconds(command: Sequence[str]) -> float:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
