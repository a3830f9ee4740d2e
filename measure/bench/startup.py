"""Time until a command is up, against `python -c "import onnx"`: medians, alternating."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.architectures import build

import modelexport as mx
from measure.bench.report import Table

LIMIT = 2.0


def measure(runs: int = 15) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bert.onnx"
        mx.export(build("bert"), path, exporter="torchscript", no_check=True)
        commands = {
            'python -c "import onnx"': ["-c", "import onnx"],
            "modelexport --help": ["-m", "modelexport", "--help"],
            "modelexport analyze FILE": ["-m", "modelexport", "analyze", str(path)],
            "modelexport validate FILE": ["-m", "modelexport", "validate", str(path)],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(runs):
            for name, command in commands.items():
                times[name].append(_seconds(command))
    base = statistics.median(times['python -c "import onnx"'])
    medians = {name: statistics.median(values) for name, values in times.items()}
    rows = tuple((f"`{name}`", f"{value:.3f}", f"{value / base:.2f}") for name, value in medians.items())
    text = f"{__doc__ or ''}\nThe limit is {LIMIT:g} times."
    return Table("Start-up", text, ("command", "seconds", "ratio"), rows, max(medians.values()) / base <= LIMIT)


def _seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start
