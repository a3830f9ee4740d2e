"""Files of models for tests: rows of a small ONNX file, and processes that break down before they do anything."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from modelexport.record.results.fleet import Figure, StepResult, StepStatus

# Python runs a module of this name when it starts. FLEET_FAULT says what it does to its process.
_FAULTS = """
import os, signal, time
fault = os.environ.get("FLEET_FAULT", "")
if fault.startswith("exit"):
    os._exit(int(fault[4:]))
if fault.startswith("signal"):
    os.kill(os.getpid(), int(fault[6:]))
if fault.startswith("wait"):
    time.sleep(float(fault[4:]))
if fault == "hang":
    time.sleep(600)
if fault == "eat":
    held = []
    while True:
        held.append(bytearray(20_000_000))
if fault == "once":  # killed from outside, and fine when it is run again
    mark = os.environ["FLEET_MARK"]
    if not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
if fault == "full":
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
"""


def write_model(path: Path, nodes: int = 1) -> Path:
    names = [f"x{number}" for number in range(nodes + 1)]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in (names[0], names[-1])]
    relus = [helper.make_node("Relu", [one], [next_one]) for one, next_one in pairwise(names)]
    path.parent.mkdir(parents=True, exist_ok=True)
    graph = helper.make_graph(relus, "g", values[:1], values[1:])
    # Versions that every ONNX Runtime can run.
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def write_fleet(folder: Path, text: str) -> Path:
    """A file of models beside a model `a.onnx` of three nodes."""
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder / "a.onnx", 3)
    path = folder / "models.toml"
    path.write_text(text, encoding="utf-8")
    return path


def faulty_row(folder: Path, name: str, fault: str, more: str = "") -> str:
    """A row whose processes do that to themselves; it needs trust."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_FAULTS, encoding="utf-8")
    variables = f'FLEET_FAULT = "{fault}", FLEET_MARK = "{folder / "mark"}", PYTHONPATH = "{folder}"'
    return f'\n[[row]]\nname = "{name}"\nfile = "a.onnx"\nenv = {{ {variables} }}\n{more}\n'


def step_result(
    step: str = "export",
    status: StepStatus = StepStatus.OK,
    files: Mapping[str, int] | None = None,
    figures: Mapping[str, Figure] | None = None,
    row: str = "bert",
) -> StepResult:
    return StepResult(row, step, step, status, files=files or {}, figures=figures or {}, seconds=2.0, started="now")
