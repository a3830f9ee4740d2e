"""Costs by module: FLOPs against PyTorch's own counter, kernel time against ONNX Runtime's own trace."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import modelexport as mx
from measure.corpus.models import build, export_row, inputs_of
from measure.corpus.rows import EXPORTERS, Outcome, Row, read_rows
from measure.pages import Table
from modelexport.capture.isolation import exportable_moe
from modelexport.errors import ExportFailed, ToolFailed
from modelexport.graph.file.reading import open_model
from modelexport.graph.types import dims_of
from modelexport.record.results.profile import Profile

_FLOPS_TEXT = """\
FLOPs of matrix multiplications and convolutions: `modelexport cost` against `torch.utils.flop_counter`.

Every architecture of the corpus that the default exporter takes. Both see the same inputs; the file's axes are open and
are given the sizes of these inputs. torch's counter watches the PyTorch model run. It knows neither the fused attention
nor the fused recurrent kernels of the CPU, nor the fast path of torch.nn's transformers, nor grouped products of
experts, so all of these run as the matrix products that they are, and experts as they are exported. `modules` are those
that are called and multiply anything, in PyTorch or in the file; `equal` are those of them whose total agrees to 1 % as
well."""
EXPORTER = "dynamo"
TOLERANCE, ARCHITECTURES = 0.01, 30
_FLOPS_COLUMNS = ("model", "torch", "file", "difference", "equal", "modules", "because")

# Where PyTorch and the file do different work, and what the difference is.
DIFFERENT = {
    "lilt": "what the last layer makes of the layout is read by nobody, and is not in the file",
    "unused": "what nobody reads is not in the file",
    "bilinear": "torch's counter does not know the operator of `nn.Bilinear`, which is two products in the file",
    "deberta-v2": "the exporter projects the relative positions once and for all, since they follow from weights alone",
}
# Where modules alone differ, and the whole agrees.
PARTS = {
    "big-bird": "it exchanges attention modules while it runs, and torch's counter loses their names",
    "trocr": "`encoder.pooler` is not in the file",
    "owlvit": "`owlvit.visual_projection` is not in the file",
    "upernet": "`auxiliary_head` is not in the file",
    "mask2former": "`class_predictor` is in the file for one of its two calls",
    "sam": "`shared_image_embedding` is a constant in the file",
    "branching": "torch runs one branch, and the other, which takes as much, is counted",
}
# What torch's counter cannot watch, and why.
UNCOUNTED = {
    "scanned": "torch's counter refuses torch's `scan`",
}


@dataclass(frozen=True)
class Counted:
    """What both say of one architecture, in total (the path "") and by module."""

    name: str
    torch: Mapping[str, int]
    file: Mapping[str, int]

    @property
    def holds(self) -> bool:
        return self.agrees("")

    def agrees(self, path: str) -> bool:
        ours, theirs = self.file.get(path, 0), self.torch.get(path, 0)
        return abs(ours - theirs) <= TOLERANCE * theirs

    @property
    def modules(self) -> list[str]:
        return [path for path in {**self.torch, **self.file} if self.torch.get(path) or self.file.get(path)]

    @property
    def row(self) -> tuple[str, ...]:
        ours, theirs = self.file[""], self.torch[""]
        equal = sum(map(self.agrees, self.modules))
        apart = f"{ours / theirs - 1:+.2%}" if ours != theirs else "0"
        because = DIFFERENT.get(self.name, PARTS.get(self.name, ""))
        return (self.name, f"{theirs:,}", f"{ours:,}", apart, str(equal), str(len(self.modules)), because)


def measure_flops() -> Table:
    found = [one for one in map(_counted, _exported_rows()) if one is not None]
    within = sum(one.holds for one in found)
    unexplained = [one.name for one in found if not one.holds and one.name not in DIFFERENT]
    said = f"{within} of {len(found)} agree to {TOLERANCE:.0%}; {ARCHITECTURES} are asked for."
    text = f"{_FLOPS_TEXT}\n\n{said}"
    rows = tuple(one.row for one in found)
    notes = tuple(f"`{name}` is left out: {why}" for name, why in UNCOUNTED.items())
    return Table("FLOPs", text, _FLOPS_COLUMNS, rows, within >= ARCHITECTURES and not unexplained, notes)


def _exported_rows() -> Iterable[Row]:
    exported = (Outcome.OK, Outcome.DIVERGES, Outcome.UNRUNNABLE)
    rows = [row for row in read_rows() if row.expected[EXPORTER].outcome in exported]
    return [row for row in rows if row.name not in UNCOUNTED]


def _counted(row: Row) -> Counted | None:
    """None for a network that multiplies nothing."""
    sys.stderr.write(f"flops: {row.name}\n")
    model = build(row).requires_grad_(False)
    inputs = inputs_of(row, model)
    reference = torch_flops(model, inputs)
    if not reference[""]:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        mx.export(model, path, inputs=inputs, exporter=EXPORTER, no_check=True)
        return Counted(row.name, reference, file_flops(path, inputs))


def torch_flops(model: torch.nn.Module, inputs: object) -> dict[str, int]:
    """By module path."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), exportable_moe(model), without_kernels(), counter:
        model(**inputs) if isinstance(inputs, dict) else model(*_listed(inputs))
    root = type(model).__name__
    counts = {name: sum(flops.values()) for name, flops in counter.get_flop_counts().items()}
    inside = {name.partition(".")[2]: count for name, count in counts.items() if name.startswith(f"{root}.")}
    return {**inside, "": counter.get_total_flops()}


@contextmanager
def without_kernels() -> Iterator[None]:
    """Recurrent layers and transformers as the matrix products that they are, which the counter sees."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with without_mkldnn():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def without_mkldnn() -> Iterator[None]:
    """Recurrent layers as the matrix products that they are; `flags` of torch would touch more than this one."""
    enabled, *_ = torch.backends.mkldnn.set_flags(False)
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(enabled)


def file_flops(path: Path, inputs: object) -> dict[str, int]:
    found = mx.cost(path, at=_sizes(path, inputs))
    by_module = {one.path: one.total.flops.value or 0 for one in found.modules if one.path and one.calls}
    return {**by_module, "": found.total.flops.value or 0}


def _sizes(path: Path, inputs: object) -> dict[str, int]:
    """What the open axes of a file are for these inputs."""
    values = list(open_model(path).proto.graph.input)
    given = _by_name(inputs, [value.name for value in values])
    sizes: dict[str, int] = {}
    for value in values:
        pairs = zip(dims_of(value.type) or (), given[value.name].shape, strict=False)
        sizes.update({dim: size for dim, size in pairs if isinstance(dim, str)})
    return sizes


def _by_name(inputs: object, names: list[str]) -> dict[str, torch.Tensor]:
    """Inputs may be tensors by name, or one after the other, with some in lists and dictionaries."""
    if isinstance(inputs, dict) and inputs.keys() >= set(names):
        return inputs
    return dict(zip(names, (one for one in tree_leaves(inputs) if isinstance(one, torch.Tensor)), strict=False))


def _listed(inputs: object) -> list[torch.Tensor]:
    return list(inputs) if isinstance(inputs, list | tuple) else [inputs]  # type: ignore[list-item]


_PROFILED_TEXT = """\
How much of the time that ONNX Runtime spends in kernels is charged to modules, all optimizations on.

`attributed` is the share of kernel time of nodes that belong to some module; `in parts` is what the modules are charged
with in all runs, against what ONNX Runtime's trace adds up to by itself. Both must be all of it. `shared` is what
kernels do for several modules at once, which is charged to none of them alone."""
PROFILED_ROWS = ("bert", "llama", "t5", "vit", "resnet", "whisper", "branching", "long-short-term")
_RUNS = 5


def measure_profiled() -> Table:
    rows, holds = [], True
    for name, exporter, kind, profile in _profiles():
        if isinstance(profile, str):
            rows.append((name, exporter, kind, "", profile, "", ""))
            continue
        parts = profile.check.charged / profile.check.trace
        shared = sum(node.time for node in profile.nodes if node.sharers) / profile.time
        holds &= profile.attributed == 1.0 and profile.check.holds
        figures = (f"{profile.attributed:.1%}", f"{parts:.6f}", f"{shared:.1%}")
        rows.append((name, exporter, kind, str(len(profile.nodes)), *figures))
    columns = ("model", "exporter", "weights", "nodes", "attributed", "in parts", "shared")
    return Table("Time by module", _PROFILED_TEXT, columns, tuple(rows), holds)


def _profiles() -> Iterator[tuple[str, str, str, Profile | str]]:
    """With a reason in the place of a profile where torch or the quantizer refuses the model."""
    for name in PROFILED_ROWS:
        for exporter in EXPORTERS:
            with tempfile.TemporaryDirectory() as folder:
                plain, small = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
                try:
                    export_row(name, exporter, plain)
                    yield name, exporter, "float", mx.profile(plain, runs=_RUNS, warmup=1)
                    mx.run_tool(plain, "int8", small)
                    yield name, exporter, "int8", mx.profile(small, runs=_RUNS, warmup=1)
                except (ExportFailed, ToolFailed) as error:
                    yield name, exporter, "int8" if plain.exists() else "any", error.message.splitlines()[0]
