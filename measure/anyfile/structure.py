"""Structure alone: layers of networks without a single name, held against the record of the same network.

    python -m measure.anyfile.structure [ROWS...]

A layer is right if it is the layer of the same number in the same run. The truth is the record of our own export; the
file has neither its record nor any of its names, and its nodes are in another order.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import modelexport as mx
from measure.anyfile.nameless import old_key, remove_names
from measure.anyfile.plain_networks import PLAIN
from measure.anyfile.repeated import ROWS, Repeated, export_repeated
from measure.corpus.rows import EXPORTERS
from measure.workers import BUILD
from modelexport.attribute.sources.structure import read_structure
from modelexport.errors import ModelExportError
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged
from modelexport.graph.index import index_model
from modelexport.record.hierarchy import ModuleCall, lineage_of
from modelexport.record.provenance import Attribution, Provenance

FOLDER = BUILD / "structure"
_LAYER = re.compile(r"(.*?)(?:stages\.(\d+)\.)?layers\.(\d+)(?:\.|$)")

LEAST_COUNTED, LEAST_RIGHT = 27 / 30, 0.92

Place = tuple[str, int]  # a run, and the number of a layer in it


@dataclass(frozen=True)
class Score:
    """One file: layers by run, as they are and as they were found; nodes in layers, and those in the right one."""

    name: str
    true_layers: Mapping[str, int]
    layers: Mapping[str, int]
    nodes: int
    right: int

    @property
    def counted(self) -> bool:
        return sorted(self.true_layers.values()) == sorted(self.layers.values())


def export_once(row: Repeated, exporter: str, folder: Path = FOLDER) -> Path | None:
    """The tagged file of a row; None where torch cannot export it."""
    path = folder / f"{row.name}-{exporter}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            export_repeated(row, exporter, path)
        except ModelExportError:
            return None
    return path


def score_file(name: str, file: TaggedFile, classes: Sequence[str]) -> Score:
    truth = true_places(file.provenance, classes)
    nameless, names = remove_names(file.proto)
    reading = read_structure(index_model(nameless))
    paths = {} if reading is None else {old_key(key, names): path[0] for key, path in reading.nodes.items()}
    layers = number_layers(paths)
    same_run = match_runs(truth, layers)
    right = sum(
        key in layers and (same_run.get(layers[key][0]), layers[key][1]) == place for key, place in truth.items()
    )
    return Score(name, count_layers(truth.values()), count_layers(layers.values()), len(truth), right)


def true_places(provenance: Provenance, classes: Sequence[str]) -> dict[str, Place]:
    """By node: the run and the number of its layer; nodes outside of layers are left out."""
    modules, order = provenance.hierarchy.modules, provenance.hierarchy.call_order

    def layer_of(attribution: Attribution) -> ModuleCall | None:
        if attribution.ancestor is None:
            return None
        for call in provenance.hierarchy.stack(attribution.ancestor):
            if modules[call.path].class_name in classes:
                return call
        # Some call the forward of what is in a layer, and never the layer.
        paths = lineage_of(attribution.ancestor.path)
        return next((ModuleCall(path) for path in paths if modules[path].class_name in classes), None)

    calls = {key: layer_of(entry.attribution) for key, entry in provenance.nodes.items()}
    first: dict[ModuleCall, int] = {}
    for call in filter(None, calls.values()):
        inside = (number for below, number in order.items() if f"{below.path}.".startswith(f"{call.path}."))
        first[call] = order.get(call, min(inside, default=0))
    numbers: dict[ModuleCall, Place] = {}
    counts: Counter[str] = Counter()
    for call in sorted(first, key=lambda item: first[item]):
        run = re.split(r"\.\d+", call.path)[0]
        numbers[call] = (run, counts[run])
        counts[run] += 1
    return {key: numbers[call] for key, call in calls.items() if call is not None}


def number_layers(paths: Mapping[str, str]) -> dict[str, Place]:
    """The same of paths that were found, numbers of stages and layers in one row."""
    matches = {key: match for key, path in paths.items() if (match := _LAYER.match(path)) is not None}
    identities = {key: (match[1], int(match[2] or 0), int(match[3])) for key, match in matches.items()}
    in_order = sorted(set(identities.values()))
    counts: Counter[str] = Counter()
    numbers: dict[tuple[str, int, int], Place] = {}
    for identity in in_order:
        numbers[identity] = (identity[0], counts[identity[0]])
        counts[identity[0]] += 1
    return {key: numbers[identity] for key, identity in identities.items()}


def match_runs(truth: Mapping[str, Place], layers: Mapping[str, Place]) -> dict[str, str]:
    """The true run that most nodes of each run are in."""
    common: dict[str, Counter[str]] = defaultdict(Counter)
    for key, (run, _) in layers.items():
        if key in truth:
            common[run][truth[key][0]] += 1
    return {run: counts.most_common(1)[0][0] for run, counts in common.items()}


def count_layers(places: Iterable[Place]) -> dict[str, int]:
    return dict(Counter(run for run, _ in set(places)))


def score_plain(name: str, exporter: str, folder: Path = FOLDER) -> Sequence[str]:
    """Layers that are found in a network that has none."""
    path = folder / f"{name.replace(' ', '_')}-{exporter}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        build, example = PLAIN[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mx.export(build().eval(), path, inputs=(example(),), exporter=exporter, no_check=True)
    nameless, _ = remove_names(open_tagged(path).proto)
    reading = read_structure(index_model(nameless))
    return () if reading is None else sorted({path for paths in reading.nodes.values() for path in paths})


def measure_structure(names: Sequence[str], exporters: Sequence[str], folder: Path = FOLDER) -> bool:
    """Print a line for each network and each exporter that can export it, and whether all figures are reached."""
    scores = []
    for row in ROWS:
        for exporter in exporters if not names or row.name in names else ():
            path = export_once(row, exporter, folder)
            if path is not None:
                scores.append(score_file(f"{row.name}, {exporter}", open_tagged(path), row.layers))
                sys.stdout.write(f"{describe(scores[-1])}\n")
    invented = {} if names else {name: score_plain(name, exporters[0], folder) for name in PLAIN}
    for name, paths in invented.items():
        sys.stdout.write(f"{name}: {len(paths)} invented\n")
    counted, nodes, right = sum(score.counted for score in scores), sum(_nodes(scores)), sum(_right(scores))
    sys.stdout.write(
        f"layers counted right in {counted} of {len(scores)} files; {right / nodes:.1%} of nodes in layers\n"
    )
    return counted >= LEAST_COUNTED * len(scores) and right >= LEAST_RIGHT * nodes and not any(invented.values())


def _nodes(scores: Sequence[Score]) -> list[int]:
    return [score.nodes for score in scores]


def _right(scores: Sequence[Score]) -> list[int]:
    return [score.right for score in scores]


def describe(score: Score) -> str:
    share = score.right / max(score.nodes, 1)
    counts = "right" if score.counted else f"{dict(score.layers)} in place of {dict(score.true_layers)}"
    return f"{score.name:28} {share:6.1%}   number of layers: {counts}"


if __name__ == "__main__":
    sys.exit(not measure_structure(sys.argv[1:], EXPORTERS))
