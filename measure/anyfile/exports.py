"""Exports: every model with its record, before and after tools, kept in a folder for the next run.

    build/measure/anyfile-exports/bert-dynamo/before.onnx              our export, with its record inside
    build/measure/anyfile-exports/bert-dynamo/ort-all.onnx             what a tool made of it
    build/measure/anyfile-exports/bert-dynamo/ort-all.hierarchy.json   its record, relinked: the truth
    build/measure/anyfile-exports/bert-dynamo/int8.failed              why there is none

Exporting takes much longer than reading, and what is measured is reading. The folder is emptied if the models or the
installed versions change; after a change to how a record is made, remove it (`make clean`).
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx

from measure.corpus.rows import MANIFEST
from measure.pages import list_versions
from measure.results import first_line, installed_versions
from measure.workers import silence
from modelexport.errors import ExportFailed
from modelexport.graph.file.metadata import sidecar_path
from modelexport.graph.file.tagged_file import open_tagged, read_sidecar, tagged_ancestor
from modelexport.record.document import write_document
from modelexport.record.provenance import Provenance
from modelexport.transform.tools.tool import read_whole

_BEFORE = "before.onnx"
_FAILED = ".failed"
_KEY = "made-of"
_LONGEST = 200


class NotMade(Exception):
    """torch does not export a model, or a tool fails on it. Nothing that could be read."""


@dataclass(frozen=True)
class Export:
    """A file with a record of all of its nodes. `record` is the truth about the file."""

    model: onnx.ModelProto
    record: Provenance


def keep_current(folder: Path) -> None:
    """Empty a folder of exports that were made of other models or with other versions."""
    key = hashlib.sha256(list_versions(installed_versions("onnxscript", "onnxslim")).encode())
    for source in (MANIFEST, MANIFEST.with_name("models.py"), *sorted((MANIFEST.parent / "networks").glob("*.py"))):
        key.update(source.read_bytes())
    known = folder / _KEY
    if not known.exists() or known.read_text(encoding="utf-8") != key.hexdigest():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        known.write_text(key.hexdigest(), encoding="utf-8")


def load_export(row: str, exporter: str, folder: Path) -> Export:
    """From the folder of this row and exporter, exported now if it is not there. Raises NotMade."""
    path = folder / _BEFORE
    _make_once(path, lambda target: _export(row, exporter, target))
    return Export(read_whole(path), open_tagged(path).provenance)


def load_made(chain: str, folder: Path) -> Export:
    """What a chain of tools makes of the export in a folder. Raises NotMade."""
    path = folder / f"{chain.replace(':', '-')}.onnx"
    _make_once(path, lambda target: _run_tools(chain, folder / _BEFORE, target))
    return Export(read_whole(path), read_sidecar(sidecar_path(path)))


def _make_once(path: Path, make: Callable[[Path], None]) -> None:
    failed = path.with_suffix(_FAILED)
    if failed.exists():
        raise NotMade(failed.read_text(encoding="utf-8"))
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # What is half made when a worker is cut off must not be taken for a result.
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        try:
            make(Path(scratch) / path.name)
        except NotMade as error:
            failed.write_text(str(error), encoding="utf-8")
            raise
        for made in sorted(Path(scratch).iterdir(), key=lambda file: file.name == path.name):
            made.rename(path.parent / made.name)


def _export(row: str, exporter: str, target: Path) -> None:
    # torch takes seconds to load, and most exports are there already; so it is with tools below.
    from measure.corpus.models import export_row

    try:
        export_row(row, exporter, target)
    except ExportFailed as error:
        raise NotMade(first_line(error.message)) from error


def _run_tools(chain: str, before: Path, target: Path) -> None:
    from measure.lineage.chains import run_chain
    from measure.lineage.scoring import relink_model

    with tempfile.TemporaryDirectory() as scratch:
        try:
            with silence():
                made = run_chain(chain, before, Path(scratch), ())
            model = read_whole(made)
        except Exception as error:
            said = first_line(str(error).replace(f"{scratch}/", "")) or "no message"
            raise NotMade(f"{type(error).__name__}: {said[:_LONGEST]}") from error
    truth = relink_model(tagged_ancestor(open_tagged(before)), model).record
    sidecar_path(target).write_text(write_document(truth), encoding="utf-8")
    target.write_bytes(model.SerializeToString())
