"""Scenes: nine verbs that write, each into a place where an older file is, so that a mixture of both is possible.

export attach relink quantize extract fold strip select validate      files: model, record, external data
strip                                                                 a package that replaces a package
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from tests.support import any_files
from tests.support.packages import ENCODER, PackageRecipe
from tests.support.small_file import SmallFile, credited

from measure.signals.trials import Scene
from modelexport.cli.main import modelexport, run_guarded

NETWORK = "measure.fuzzing.seed_network:Network"
_EXPORT = f"export -m {NETWORK} --input tokens=2x3:int64 --exporter torchscript -q -o out.onnx"


def _run(*arguments: object) -> None:
    code = run_guarded(modelexport, [*map(str, arguments), "--quiet"])
    if code not in (0, 1):
        raise RuntimeError(f"{' '.join(map(str, arguments))} ended with {code}")


@cache
def _make_plain(scale: float, external: bool, folder: Path) -> Path:
    """A file of another tool: weights of another size are another version of it."""
    model = any_files.plain()
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(scale), tensor.name))
    path = folder / "in.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path, save_as_external_data=external, location="in.onnx.data", size_threshold=64)
    return path


def _place_attached(folder: Path, store: Path, *, external: bool) -> None:
    """Where `attach` writes is what it wrote for another version: other weights, another operator."""
    old = _make_plain(2.0, external, store / f"old-{external}")
    model = onnx.load(old, load_external_data=False)
    model.graph.node[-1].op_type = "Sigmoid"
    for name in (old, *old.parent.glob("*.data")):
        shutil.copyfile(name, folder / name.name)
    (folder / "in.onnx").write_bytes(model.SerializeToString())
    _run("attach", folder / "in.onnx", "-o", folder / "out.onnx")
    for name in _make_plain(1.0, external, store / f"new-{external}").parent.iterdir():
        shutil.copyfile(name, folder / name.name)


def _place_stripped(folder: Path, store: Path) -> None:
    """Files without a record, whose data would be taken for that of the other."""
    _place_attached(folder, store, external=True)
    _run("strip", folder / "out.onnx", "-o", folder / "older.onnx")
    for path in folder.glob("out.*"):
        path.unlink()
    _run("strip", folder / "older.onnx", "-o", folder / "out.onnx")


def _place_small(folder: Path, command: str) -> None:
    """A tagged file, and beside it what a command made of another version of it."""
    SmallFile().but(r1=credited("layers.0.fc")).write(folder / "in.onnx")
    _run(*command.format(folder=folder).split())
    SmallFile().write(folder / "in.onnx")


def _place_damaged(folder: Path) -> None:
    """Keys on nodes that differ from the record, which `validate --repair` writes anew."""
    SmallFile().write(folder / "out.onnx")
    model = onnx.load(folder / "out.onnx")
    del model.graph.node[1].metadata_props[:]
    (folder / "in.onnx").write_bytes(model.SerializeToString())
    (folder / "in.hierarchy.json").write_bytes((folder / "out.hierarchy.json").read_bytes())
    SmallFile().but(r1=credited("layers.0.fc")).write(folder / "out.onnx")


def _place_package(folder: Path) -> None:
    PackageRecipe().write(folder / "in")
    rows = [(row[0], "Sigmoid" if row[1] == "Relu" else row[1], *row[2:]) for row in ENCODER.rows]
    PackageRecipe(encoder=replace(ENCODER, rows=rows), absent=()).write(folder / "old")
    _run("strip", folder / "old", "-o", folder / "out")
    shutil.rmtree(folder / "old")


def _place_export(folder: Path, store: Path) -> None:
    """An export by the other exporter, made once."""
    ready = store / "export"
    if not ready.exists():
        ready.mkdir(parents=True)
        _run(*_EXPORT.replace("torchscript", "dynamo").replace("out.onnx", str(ready / "out.onnx")).split())
    for path in ready.iterdir():
        shutil.copyfile(path, folder / path.name)


# On a small tagged file: what is there already, and the command that replaces it.
_SMALL = (
    ("relink {folder}/in.onnx {folder}/in.onnx -o {folder}/out.onnx", "relink in.onnx in.onnx -o out.onnx"),
    ("quantize {folder}/in.onnx --exclude op=MatMul -o {folder}/out.onnx", "quantize in.onnx -o out.onnx"),
    ("extract {folder}/in.onnx layers.1 -o {folder}/out.onnx", "extract in.onnx layers.0 -o out.onnx"),
    ("fold {folder}/in.onnx -o {folder}/out.onnx", "fold in.onnx -o out.onnx"),
    (
        "select {folder}/in.onnx op=Relu --for names -o {folder}/names.txt --named {folder}/out.onnx",
        "select in.onnx op=MatMul --for names -o names.txt --named out.onnx",
    ),
)


def list_scenes(store: Path, *, with_torch: bool = True) -> list[Scene]:
    """
    store  where files are kept that several trials begin with
    """
    attaching = "attach in.onnx -o out.onnx"
    scenes = [
        Scene("attach", partial(_place_attached, store=store, external=True), attaching, "out.onnx"),
        Scene("attach", partial(_place_attached, store=store, external=False), attaching, "out.onnx"),
        *(
            Scene(command.split()[0], partial(_place_small, command=before), command, "out.onnx")
            for before, command in _SMALL
        ),
        Scene("strip", partial(_place_stripped, store=store), "strip in.onnx -o out.onnx", "out.onnx"),
        Scene("strip", _place_package, "strip in -o out --force", "out"),
        Scene("validate", _place_damaged, "validate in.onnx --repair -o out.onnx", "out.onnx"),
    ]
    if with_torch:
        scenes.append(Scene("export", partial(_place_export, store=store), _EXPORT, "out.onnx"))
    return scenes
