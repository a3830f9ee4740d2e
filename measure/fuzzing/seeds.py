"""Seeds: small sound files that cases are mutated from, made by the command itself, a folder each.

plain, function, bodies, scan, sparse, quantized, external …   as other tools write them
tagged, folded, package                                        with records, made by hand
dynamo, torchscript, int8                                      exported and quantized by this package; these need torch
overlay, arrays                                                a sound model beside the JSON or npz that is mutated
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from tests.support import any_files
from tests.support.packages import PackageRecipe
from tests.support.small_file import SmallFile

from measure.job import ROOT
from modelexport.cli.main import modelexport, run_guarded

MODEL, PARTNER, OVERLAY, ARRAYS = "model.onnx", "partner.onnx", "overlay.json", "inputs.npz"
PACKAGE = "package"
_SECONDS_TO_EXPORT = 600


@dataclass(frozen=True)
class Seed:
    """A folder of files.

    subject  what verbs are given, a file or a folder of files, by its name in the folder
    module   one that can be cut out
    mutated  endings of the files that are tampered with; the others stay sound
    """

    name: str
    make: Callable[[Path], None]
    module: str = "layers.0"
    subject: str = MODEL
    mutated: tuple[str, ...] = (MODEL, ".data", ".json")
    needs_torch: bool = False

    def files(self, folder: Path) -> list[Path]:
        """What may be tampered with, in an order that is always the same."""
        files = (path for path in folder.rglob("*") if path.is_file() and path.name.endswith(self.mutated))
        beside = Path(PARTNER).stem
        return sorted(path for path in files if not path.relative_to(folder).parts[0].startswith(f"{beside}."))


def _save(make: Callable[[], onnx.ModelProto], folder: Path) -> None:
    for name in (MODEL, PARTNER):
        (folder / name).write_bytes(make().SerializeToString())


def _save_external(folder: Path) -> None:
    any_files.save_external(folder / MODEL)
    (folder / PARTNER).write_bytes(any_files.plain().SerializeToString())


def with_scan() -> onnx.ModelProto:
    """A Scan whose body sums up rows, behind the two layers."""
    rows = helper.make_tensor_value_info("row", TensorProto.FLOAT, [any_files.WIDTH])
    state = helper.make_tensor_value_info("sum", TensorProto.FLOAT, [any_files.WIDTH])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [any_files.WIDTH]) for name in ("total", "line")]
    body = helper.make_graph(
        [
            helper.make_node("Add", ["sum", "row"], ["total"], "/head/scan/Add"),
            helper.make_node("Identity", ["total"], ["line"], "/head/scan/Identity"),
        ],
        "body",
        [state, rows],
        ends,
    )
    model = any_files.plain()
    model.graph.node[-1].output[0] = "y0"
    start = helper.make_tensor("start", TensorProto.FLOAT, [any_files.WIDTH], [0.0] * any_files.WIDTH)
    model.graph.initializer.append(start)
    model.graph.node.append(
        helper.make_node("Scan", ["start", "y0"], ["last", "y"], "/head/Scan", body=body, num_scan_inputs=1)
    )
    return model


def _make_tagged(folder: Path) -> None:
    SmallFile().write(folder / MODEL)
    SmallFile().write(folder / PARTNER)


def _make_attached(folder: Path) -> None:
    """With an outline beside the record, as verbs write it."""
    _save(any_files.with_bodies, folder)
    given = (folder / MODEL).rename(folder / "given.onnx")
    _run("attach", given, "-o", folder / MODEL)
    given.unlink()


def _make_folded(folder: Path) -> None:
    SmallFile().write(folder / PARTNER)
    _run("fold", folder / PARTNER, "-o", folder / MODEL)


def _make_package(folder: Path) -> None:
    PackageRecipe().write(folder / PACKAGE)
    PackageRecipe().write(folder / PARTNER)


def _make_overlay(folder: Path) -> None:
    """What `profile` and `verify` write, about a file that stays sound."""
    _save(any_files.plain, folder)
    _run("profile", folder / MODEL, "--runs", 1, "--warmup", 0, "--format", "json", "-o", folder / OVERLAY)


def _make_arrays(folder: Path) -> None:
    _save(any_files.plain, folder)
    np.savez(folder / ARRAYS, x=np.zeros((1, any_files.WIDTH), np.float32))


def _run(*arguments: object) -> None:
    code = run_guarded(modelexport, [*map(str, arguments), "--quiet"])
    if code:
        raise RuntimeError(f"no seed: {' '.join(map(str, arguments))} ended with {code}")


def _export(exporter: str, folder: Path) -> None:
    from measure.fuzzing.seed_network import export_network

    export_network(folder / MODEL, exporter)
    export_network(folder / PARTNER, exporter)


def _quantize(folder: Path) -> None:
    from measure.fuzzing.seed_network import export_network

    export_network(folder / PARTNER, "dynamo")
    _run("quantize", folder / PARTNER, "-o", folder / MODEL)


def _of_others() -> Iterator[Seed]:
    for name in ("opset7", "function", "bodies", "sparse", "quantized", "custom", "nameless", "empty"):
        yield Seed(name, partial(_save, any_files.VARIANTS[name]))
    yield Seed("scan", partial(_save, with_scan))
    yield Seed("external", _save_external)


SEEDS = (
    *_of_others(),
    Seed("tagged", _make_tagged),
    Seed("attached", _make_attached),
    Seed("folded", _make_folded),
    Seed("package", _make_package, "decoder.layers.0", PACKAGE, (".onnx", ".json")),
    Seed("overlay", _make_overlay, mutated=(OVERLAY,)),
    Seed("arrays", _make_arrays, mutated=(ARRAYS,)),
    Seed("dynamo", partial(_export, "dynamo"), "blocks.0", needs_torch=True),
    Seed("torchscript", partial(_export, "torchscript"), "blocks.0", needs_torch=True),
    Seed("int8", _quantize, "blocks.0", needs_torch=True),
)


def make_seeds(folder: Path, *, with_torch: bool = True) -> tuple[Seed, ...]:
    """Make those that are not there yet; torch runs in a process of its own, because cases must not inherit it."""
    wanted = [seed for seed in SEEDS if with_torch or not seed.needs_torch]
    missing = [seed for seed in wanted if not (folder / seed.name).exists()]
    for seed in (seed for seed in missing if not seed.needs_torch):
        make_seed(seed, folder)
    if any(seed.needs_torch for seed in missing):
        names = [seed.name for seed in missing if seed.needs_torch]
        command = [sys.executable, "-W", "ignore", "-m", "measure.fuzzing.seeds", str(folder), *names]
        subprocess.run(command, cwd=ROOT, check=True, timeout=_SECONDS_TO_EXPORT)
    return tuple(wanted)


def find_seeds(folder: Path) -> tuple[Seed, ...]:
    """Those that were made."""
    return tuple(seed for seed in SEEDS if (folder / seed.name).exists())


def make_seed(seed: Seed, folder: Path) -> None:
    """Under another name first: an interrupted run leaves no half of a seed."""
    unfinished = folder / f"{seed.name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    seed.make(unfinished)
    unfinished.rename(folder / seed.name)


@cache
def read_files(folder: Path) -> Mapping[Path, bytes]:
    """Every file of a seed, by its path in the folder."""
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


if __name__ == "__main__":
    target, *wanted_names = sys.argv[1:]
    for wanted_seed in (seed for seed in SEEDS if seed.name in wanted_names):
        make_seed(wanted_seed, Path(target))
