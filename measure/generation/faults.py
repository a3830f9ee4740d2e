"""Seeded faults in packages that generate: planted one by one, and whether `verify` names step, component and module.

    plant(fault, package_folder, copy)             a copy of a package with one fault in its description or its graph
    find_faults(folder, model, faults, scratch)    for each: what `verify` says of it, beside what is expected

Four kinds, as consumers meet them: a cache pair that is swapped, a cache tensor that is stale, a wrong position id,
and a sliding window that forgets to slide.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

import modelexport as mx
from measure.generation.families import find_family
from measure.generation.models import build_model
from measure.generation.targets import Target
from measure.pages import Table
from modelexport.api.environment import Clock
from modelexport.api.options import ChainOptions, VerifyOptions
from modelexport.api.package import open_files, open_package
from modelexport.api.verify_chain import verify_chain
from modelexport.api.verify_package import pair_components
from modelexport.capture.generation.prepare import Components, prepare_components
from modelexport.capture.onnxruntime.chain import FileChain
from modelexport.graph.file.package import write_package
from modelexport.graph.file.reading import open_model
from modelexport.graph.file.writing import save_model
from modelexport.record.model_source import ModelSource
from modelexport.record.package import PackageInfo
from modelexport.record.results.package_verification import StepCheck

Spoil = Callable[[PackageInfo, onnx.ModelProto], PackageInfo]


@dataclass(frozen=True)
class Fault:
    """
    component  whose file is spoiled
    step       where it shows first
    module     that is to be named
    """

    name: str
    spoil: Spoil
    step: int
    module: str
    component: str = "decoder"


@dataclass(frozen=True)
class FoundFault:
    fault: Fault
    check: StepCheck | None

    @property
    def named(self) -> tuple[int, str, str | None] | None:
        """Step, component and module that `verify` names; None where it finds nothing."""
        wrong = None if self.check is None else self.check.divergence
        return None if self.check is None or wrong is None else (self.check.step, wrong.component, wrong.module)

    @property
    def is_named(self) -> bool:
        return self.named == (self.fault.step, self.fault.component, self.fault.module)


def swap_pairs(left: str, right: str) -> Spoil:
    """`present` of two states exchanged in the description: `0.key` with `1.key`."""

    def spoil(info: PackageInfo, _: onnx.ModelProto) -> PackageInfo:
        names = {f"present.{left}": f"present.{right}", f"present.{right}": f"present.{left}"}
        components = [
            replace(
                item, cache=tuple(replace(pair, present=names.get(pair.present, pair.present)) for pair in item.cache)
            )
            for item in info.components
        ]
        return replace(info, components=tuple(components))

    return spoil


def swap_outputs(left: str, right: str) -> Spoil:
    """`present` of two states exchanged in the graph."""

    def spoil(info: PackageInfo, model: onnx.ModelProto) -> PackageInfo:
        names = {f"present.{left}": f"present.{right}", f"present.{right}": f"present.{left}"}
        for node in model.graph.node:
            for values in (node.input, node.output):
                values[:] = [names.get(value, value) for value in values]
        return info

    return spoil


def make_stale(state: str) -> Spoil:
    """`present` is what `past` was: nothing new is remembered."""

    def spoil(info: PackageInfo, model: onnx.ModelProto) -> PackageInfo:
        _rename_output(model, f"present.{state}")
        model.graph.node.append(helper.make_node("Identity", [f"past_key_values.{state}"], [f"present.{state}"]))
        return info

    return spoil


def shift_positions(amount: int) -> Spoil:
    """A constant is added to the positions."""
    return _change_positions("Add", amount)


def wrap_positions(length: int) -> Spoil:
    """Positions start again behind so many tokens."""
    return _change_positions("Mod", length)


def _change_positions(operator: str, number: int) -> Spoil:
    def spoil(info: PackageInfo, model: onnx.ModelProto) -> PackageInfo:
        for node in model.graph.node:
            node.input[:] = ["positions_spoiled" if value == "position_ids" else value for value in node.input]
        constant = helper.make_tensor("spoiling_number", onnx.TensorProto.INT64, [], [number])
        model.graph.initializer.append(constant)
        change = helper.make_node(operator, ["position_ids", "spoiling_number"], ["positions_spoiled"])
        model.graph.node.insert(0, change)
        return info

    return spoil


def forget_sliding(state: str) -> Spoil:
    """A window that keeps all tokens: `present` is what was cut."""

    def spoil(info: PackageInfo, model: onnx.ModelProto) -> PackageInfo:
        cut = next(node for node in model.graph.node if f"present.{state}" in node.output)
        assert cut.op_type == "Slice", cut.op_type
        whole = cut.input[0]
        cut.CopyFrom(helper.make_node("Identity", [whole], [f"present.{state}"], name=cut.name))
        return info

    return spoil


def _rename_output(model: onnx.ModelProto, name: str) -> None:
    for node in model.graph.node:
        for values in (node.input, node.output):
            values[:] = [f"{name}_unused" if value == name else value for value in values]


# Of a decoder with two layers; the prompt has 8 tokens. A window of 8 keeps 7 of them.
PLAIN_FAULTS = (
    Fault("keys of two layers swapped in the description", swap_pairs("0.key", "1.key"), 1, "model.layers.0.self_attn"),
    Fault("key and value swapped in the description", swap_pairs("1.key", "1.value"), 1, "model.layers.1.self_attn"),
    Fault(
        "values of two layers swapped in the graph", swap_outputs("0.value", "1.value"), 0, "model.layers.0.self_attn"
    ),
    Fault("key that is never renewed", make_stale("0.key"), 0, "model.layers.0.self_attn"),
    Fault("value that is never renewed", make_stale("1.value"), 0, "model.layers.1.self_attn"),
    Fault("positions shifted by one", shift_positions(1), 0, "model.rotary_emb"),
    Fault("positions that start again behind 11 tokens", wrap_positions(11), 1, "model.rotary_emb"),
)
WINDOW_FAULTS = (
    Fault("key window that does not slide", forget_sliding("0.key"), 0, "model.layers.0.self_attn"),
    Fault("value window that does not slide", forget_sliding("1.value"), 0, "model.layers.1.self_attn"),
    Fault("key and value swapped in the graph", swap_outputs("0.key", "0.value"), 0, "model.layers.0.self_attn"),
    Fault("values of two layers swapped", swap_pairs("0.value", "1.value"), 1, "model.layers.0.self_attn"),
    Fault("window that is never renewed", make_stale("1.key"), 0, "model.layers.1.self_attn"),
)

FAULTS = {"llama": PLAIN_FAULTS, "mistral": WINDOW_FAULTS}
_TITLE = "Seeded faults"
_TEXT = (
    "Packages with one fault each, their digests right. `verify` runs the files as a chain beside `generate`, and has "
    "to name the first step, the file and the module that are wrong."
)


def measure_part(folder: Path) -> tuple[Table, tuple[Target, ...]]:
    """Packages of both families are exported into `folder`, and spoiled there."""
    found = [(family, item) for family in FAULTS for item in _find_in_family(family, folder / family)]
    named = sum(item.is_named for _, item in found)
    rows = tuple(
        (family, item.fault.name, *_describe(item), "yes" if item.is_named else "no") for family, item in found
    )
    missed = tuple(f"{family}: {item.fault.name}: not named" for family, item in found if not item.is_named)
    what = "seeded faults in packages that `verify` names with step, file and module"
    target = Target(what, "all", f"{named} of {len(found)}", named == len(found))
    columns = ("family", "fault", "step", "file", "module", "right")
    return Table(_TITLE, _TEXT, columns, rows, target.holds, missed), (target,)


def _find_in_family(family: str, folder: Path) -> list[FoundFault]:
    shutil.rmtree(folder, ignore_errors=True)
    model: Any = build_model(find_family(family))
    model.save_pretrained(folder / "model")
    mx.export(folder / "model", folder / "package")
    return list(find_faults(folder / "package", folder / "model", FAULTS[family], folder / "spoiled"))


def _describe(item: FoundFault) -> tuple[str, ...]:
    return ("–",) * 3 if item.named is None else tuple(map(str, item.named))


def plant(fault: Fault, folder: Path, copy: Path) -> Path:
    """A copy of a package with one fault; its digests are right, so that nothing but running it finds the fault."""
    shutil.copytree(folder, copy)
    package = open_package(copy)
    path = package[fault.component].path
    model = open_model(path)
    info = fault.spoil(package.info, model.proto)
    save_model(model, path)
    write_package(copy, info)
    return copy


def find_faults(folder: Path, model: str | Path, faults: Iterable[Fault], scratch: Path) -> Iterator[FoundFault]:
    """Plant each fault and verify the chain; the model is loaded and captured once."""
    components = prepare_components(ModelSource(model), Clock(None).step)
    for number, fault in enumerate(faults):
        yield FoundFault(fault, _verify(plant(fault, folder, scratch / str(number)), components))


def _verify(folder: Path, components: Components) -> StepCheck | None:
    package = open_package(folder)
    compared = pair_components(package, components)
    options = VerifyOptions(ModelSource(components.module))
    files = FileChain(package.info, open_files(package))
    checks = verify_chain(files, components, compared, options, ChainOptions(4, grid=False), Clock(None))
    return next((check for check in checks.steps if not check.ok), None)
