"""What `diff` says of a model that was renamed and reordered, and of one in which one thing was changed.

Models of the corpus are exported by both exporters. *The same*: every value, weight and node gets another name, nodes
and weights are listed in another order; once with all metadata, once without any, once without any on both sides. The
diff must be empty. *Changed*: one weight, attribute or operator is another one, a node is put in or taken out, or a
layer is missing; every other time under other names and in another order, and then in turn with and without metadata.
The diff must say exactly that, in the right module, and nothing else.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx
from tests.planted_changes import KINDS, is_told, plant
from tests.scrambling import scrambled

import modelexport as mx
from measure.bench.report import Table
from measure.corpus.building import build, inputs_of
from measure.corpus.manifest import read_rows
from measure.corpus.outcome import Outcome

EXPORTERS = ("dynamo", "torchscript")
ARCHITECTURES = (
    *("bert", "gpt2", "llama", "t5", "vit", "resnet", "whisper", "albert", "mixtral", "mamba", "convnext", "swin"),
    *("deberta-v2", "mobilenet-v2", "detr", "long-short-term", "repeated-block", "tied-weights"),
)
# Changes that must be planted, over so many architectures, for the figure to mean something.
FEWEST_CHANGES, FEWEST_MODELS = 40, 8
COLUMNS = ("what", "files", "right")


def measure() -> Table:
    right: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    changed: set[str] = set()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, exporter, path) in enumerate(_exports(Path(folder))):
            sys.stderr.write(f"diffed: {name} ({exporter})\n")
            for what, problem in (*_unchanged(path), *_changed(path, number)):
                whole[what] += 1
                right[what] += not problem
                changed.update([name] if what in KINDS else [])
                if problem:
                    wrong.append(f"{name} ({exporter}), {what}: {problem[:300]}")
    planted = sum(whole[what] for what in KINDS)
    rows = tuple((what, str(count), str(right[what])) for what, count in whole.items())
    enough = planted >= FEWEST_CHANGES and len(changed) >= FEWEST_MODELS
    text = f"{(__doc__ or '').strip()}\n\n{planted} changes were planted in {len(changed)} architectures."
    return Table("Diff", text, COLUMNS, rows, enough and not wrong, tuple(wrong))


def _exports(folder: Path) -> Iterator[tuple[str, str, Path]]:
    rows = {row.name: row for row in read_rows()}
    for name in ARCHITECTURES:
        for exporter in EXPORTERS:
            if rows[name].expected[exporter].outcome is Outcome.OK:
                model = build(rows[name])
                path = folder / f"{name}-{exporter}.onnx"
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    mx.export(model, path, inputs=inputs_of(rows[name], model), exporter=exporter, no_check=True)
                yield name, exporter, path


def _unchanged(path: Path) -> Iterator[tuple[str, str]]:
    model = onnx.load(path)
    other, bare = path.with_name("other.onnx"), path.with_name("bare.onnx")
    for what, notes in (("the same, metadata kept", True), ("the same, metadata lost", False)):
        onnx.save(scrambled(model, 1, notes=notes), other)
        yield what, _difference(path, other)
    onnx.save(scrambled(model, 2, notes=False), bare)
    yield "the same, metadata lost on both sides", _difference(bare, other)


def _difference(left: Path, right: Path) -> str:
    found = mx.diff(left, right)
    return "" if found.identical else f"{found.model} {found.modules}"


def _changed(path: Path, number: int) -> Iterator[tuple[str, str]]:
    model, record = onnx.load(path), mx.load(path)
    for place, what in enumerate(KINDS):
        planted = plant(what, model, record, number)
        if planted is None:
            continue
        turn = number + place
        target = path.with_name("changed.onnx")
        onnx.save(scrambled(planted.model, turn, notes=turn % 4 == 1) if turn % 2 else planted.model, target)
        yield what, is_told(planted, mx.diff(path, target))
