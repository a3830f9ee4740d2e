"""A package, made by hand: an encoder, and a decoder of two layers with a cache. One module is in both, one in none."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from modelexport.graph.file.metadata import EmbedOptions, embed, sidecar_path
from modelexport.graph.file.package import write_package
from modelexport.graph.index import index_model
from modelexport.record.document import write_document
from modelexport.record.hierarchy import CallSite, Hierarchy, Module, ModuleCall, TensorInfo, parent_path
from modelexport.record.package import (
    PACKAGE_FILE,
    AbsentModule,
    CachePair,
    ComponentInfo,
    ComponentLink,
    PackageInfo,
    StoredFile,
)
from modelexport.record.provenance import Attribution, Confidence, Evidence, EvidenceKind, NodeEntry, Origin, Provenance

# Output, operator, inputs, owner, attributes.
Row = tuple[str, str, Sequence[str], str, Mapping[str, Any]]
Shape = Sequence[int | str]

CLASSES = {
    "": "Talker",
    "bridge": "Linear",
    "encoder": "Encoder",
    "encoder.fc": "Linear",
    "decoder": "Decoder",
    "decoder.embed": "Embedding",
    "decoder.layers": "ModuleList",
    "decoder.layers.0": "Layer",
    "decoder.layers.0.k": "Linear",
    "decoder.layers.1": "Layer",
    "decoder.layers.1.k": "Linear",
    "head": "Linear",
    "vision": "Tower",
}
WEIGHTS = {
    "bridge.weight": (4, 4),
    "encoder.fc.weight": (4, 4),
    "decoder.embed.weight": (10, 4),
    "decoder.layers.0.k.weight": (4, 4),
    "decoder.layers.1.k.weight": (4, 4),
    "head.weight": (4, 10),
    "vision.weight": (8, 4),
}


def talker_hierarchy(called: Sequence[str]) -> Hierarchy:
    modules = []
    for path, class_name in CLASSES.items():
        shape = WEIGHTS.get(f"{path}.weight")
        weights = () if shape is None else (TensorInfo("weight", shape, "float32", 4 * prod(shape)),)
        package = "torch.nn.modules" if class_name in ("Linear", "Embedding", "ModuleList") else "my.nets"
        modules.append(Module(path, class_name, package, weights, container=class_name == "ModuleList"))
    calls = [CallSite(ModuleCall(path), ModuleCall(_caller(path)) if path else None) for path in called]
    return Hierarchy.of(modules, calls)


def _caller(path: str) -> str:
    """Lists are not called: what they hold is called by the module that has the list."""
    above = parent_path(path)
    return parent_path(above) if CLASSES[above] == "ModuleList" else above


@dataclass(frozen=True)
class TinyFile:
    """A recipe for one tagged file of the package: nodes, inputs, outputs; types are float32 unless said otherwise."""

    rows: Sequence[Row]
    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]
    integers: Sequence[str] = ("input_ids",)
    owners: Mapping[str, str] = field(default_factory=dict)

    def proto(self) -> onnx.ModelProto:
        nodes = [
            helper.make_node(op, list(inputs), [output], name=f"node_{output}", **attributes)
            for output, op, inputs, _, attributes in self.rows
        ]
        read = {name for _, _, inputs, _, _ in self.rows for name in inputs}
        weights = [
            numpy_helper.from_array(np.full(shape, 0.5, np.float32), name)
            for name, shape in WEIGHTS.items()
            if name in read
        ]
        ends = [[self._value(*item) for item in values.items()] for values in (self.inputs, self.outputs)]
        graph = helper.make_graph(nodes, "g", ends[0], ends[1], weights)
        return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])

    def _value(self, name: str, shape: Shape) -> onnx.ValueInfoProto:
        element = TensorProto.INT64 if name in self.integers else TensorProto.FLOAT
        return helper.make_tensor_value_info(name, element, shape)

    def provenance(self) -> Provenance:
        owners = [self.owners.get(output, owner) for output, _, _, owner, _ in self.rows]
        called = [path for path in CLASSES if any(_is_around(path, owner) for owner in owners)]
        hierarchy = talker_hierarchy([path for path in called if CLASSES[path] != "ModuleList"])
        entries = {
            output: NodeEntry(output, f"node_{output}", op, _credit(owner))
            for (output, op, *_), owner in zip(self.rows, owners, strict=True)
        }
        names = [item.name for item in self.proto().graph.initializer]
        origin = Origin("enhanced_semantic", "dynamo", index_model(self.proto()).fingerprint, "Talker", {})
        return Provenance(hierarchy, entries, {name: _credit(parent_path(name)) for name in names}, origin)

    def write(self, path: Path) -> Path:
        model, record = self.proto(), self.provenance()
        embed(model, record, EmbedOptions())
        onnx.save(model, path)
        sidecar_path(path).write_text(write_document(record), encoding="utf-8")
        return path


def _is_around(path: str, owner: str) -> bool:
    return not path or owner == path or owner.startswith(f"{path}.")


def _credit(path: str) -> Attribution:
    call = ModuleCall(path)
    return Attribution((call,), call, Confidence.EXACT, (Evidence(EvidenceKind.SCOPE, "hand"),))


ENCODER = TinyFile(
    rows=[
        ("e0", "MatMul", ("features", "encoder.fc.weight"), "encoder.fc", {}),
        ("e1", "Relu", ("e0",), "encoder", {}),
        ("last_hidden_state", "MatMul", ("e1", "bridge.weight"), "bridge", {}),
    ],
    inputs={"features": ("batch", "frames", 4)},
    outputs={"last_hidden_state": ("batch", "frames", 4)},
)


def layer_rows(number: int, given: str) -> list[Row]:
    layer = f"decoder.layers.{number}"
    return [
        (f"k{number}", "MatMul", (given, f"{layer}.k.weight"), f"{layer}.k", {}),
        (f"present.{number}.key", "Concat", (f"past_key_values.{number}.key", f"k{number}"), layer, {"axis": 1}),
        (f"m{number}", "ReduceMax", (f"present.{number}.key",), layer, {"keepdims": 1}),
        (f"h{number}", "Add", (given, f"m{number}"), layer, {}),
    ]


DECODER = TinyFile(
    rows=[
        ("e", "Gather", ("decoder.embed.weight", "input_ids"), "decoder.embed", {}),
        ("b", "MatMul", ("encoder_hidden_states", "bridge.weight"), "bridge", {}),
        ("s", "ReduceMax", ("b",), "decoder", {"keepdims": 1}),
        ("h", "Add", ("e", "s"), "decoder", {}),
        *layer_rows(0, "h"),
        *layer_rows(1, "h0"),
        ("logits", "MatMul", ("h1", "head.weight"), "head", {}),
    ],
    inputs={
        "input_ids": ("batch", "sequence"),
        "encoder_hidden_states": ("batch", "frames", 4),
        "past_key_values.0.key": ("batch", "past_sequence", 4),
        "past_key_values.1.key": ("batch", "past_sequence", 4),
    },
    outputs={
        "logits": ("batch", "sequence", 10),
        "present.0.key": ("batch", "total_sequence", 4),
        "present.1.key": ("batch", "total_sequence", 4),
    },
)

PAIRS = tuple(CachePair(f"past_key_values.{number}.key", f"present.{number}.key") for number in range(2))
ABSENT = AbsentModule("vision", "Tower", 32, "generate never called it")


@dataclass(frozen=True)
class PackageRecipe:
    encoder: TinyFile = ENCODER
    decoder: TinyFile = DECODER
    cache: tuple[CachePair, ...] = PAIRS
    links: tuple[ComponentLink, ...] = (
        ComponentLink("encoder", "last_hidden_state", "decoder", "encoder_hidden_states"),
    )
    absent: tuple[AbsentModule, ...] = (ABSENT,)

    def write(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        self.encoder.write(folder / "encoder_model.onnx")
        self.decoder.write(folder / "decoder_model.onnx")
        (folder / "config.json").write_text("{}\n", encoding="utf-8")
        write_package(folder, self.info())
        return folder

    def info(self) -> PackageInfo:
        encoder = ComponentInfo(
            "encoder", "encoder_model.onnx", tuple(self.encoder.inputs), tuple(self.encoder.outputs)
        )
        decoder = ComponentInfo(
            "decoder", "decoder_model.onnx", tuple(self.decoder.inputs), tuple(self.decoder.outputs), self.cache
        )
        return PackageInfo((encoder, decoder), "optimum", "./talker", "speech", self.links, self.absent)


def edit_description(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change `modelexport.json` as somebody would by hand."""
    path = folder / PACKAGE_FILE
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")


def folder_content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path; temporary ones as well."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def package_path(tmp_path: Path) -> Path:
    """A sound package of two components."""
    return PackageRecipe().write(tmp_path / "talker")


DIGEST = "0123456789abcdef" * 4
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.lists(TEXT, min_size=1, max_size=4, unique=True).map(tuple)


@st.composite
def packages(draw: st.DrawFn) -> PackageInfo:
    """Descriptions of all kinds, for laws about writing and reading them."""
    components = []
    for name in draw(st.lists(st.sampled_from(["encoder", "decoder", "unet"]), min_size=1, unique=True)):
        inputs, outputs = draw(NAMES), draw(NAMES)
        pairs = tuple(
            CachePair(past, outputs[0], draw(st.floats(allow_nan=False, allow_infinity=False)), draw(st.integers(0)))
            for past in inputs[: draw(st.integers(0, 2))]
        )
        data = tuple(draw(st.lists(st.just(f"{name}.onnx.data"), max_size=1)))
        components.append(ComponentInfo(name, f"onnx/{name}.onnx", inputs, outputs, pairs, data))
    first, last = components[0], components[-1]
    absent = st.builds(AbsentModule, TEXT, TEXT, st.integers(0), TEXT)
    names = [path for component in components for path in (component.file, *component.data)]
    stored = st.builds(StoredFile, st.integers(0), st.just(DIGEST))
    return PackageInfo(
        tuple(components),
        draw(TEXT),
        draw(TEXT),
        draw(TEXT),
        (ComponentLink(first.name, first.outputs[0], last.name, last.inputs[0]),),
        tuple(draw(st.lists(absent, max_size=2))),
        {name: draw(stored) for name in names},
        tuple(draw(st.lists(TEXT, max_size=2))),
    )
