"""Structure alone: layers of networks without a single name, held against the record of the same network.

    python -m measure anyfile structure

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
from measure.catalogue import Options
from measure.corpus.rows import EXPORTERS
from measure.pages import Table, percent_of
from measure.workers import BUILD
from modelexport.attribute.sources.structure import read_structure
from modelexport.errors import ModelExportError
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged
from modelexport.graph.index import index_model
from modelexport.record.hierarchy import ModuleCall, lineage_of
from modelexport.record.provenance import Attribution, Provenance

FOLDER = BUILD / "structure"
_LAYER = re.compile(r"(.*?)(?:stages\.(\d+)\.)?layers\.(\d+)(?:\.|$)")

_TEXT = (
    "Every name is removed, nodes are in another order, and layers are looked for in what is left: equal blocks in a "
    "row. The truth are the calls of the classes that are the layers of a network, from the record that was removed. "
    "A node is right if it is in the layer of the same number in the same run of layers. The number of layers must be "
    "right in 27 of 30, and 92 % of the nodes in layers. Below are networks in which nothing repeats."
)
_COLUMNS = ("network", "layers", "found", "nodes in layers", "in the right layer")
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


def measure_structure(options: Options) -> Table:
    """The section of the page. Files stay in their folder for the next run; remove it if a network changes."""
    exporters = options.exporters or EXPORTERS
    exports = [(row, exporter, export_once(row, exporter)) for row in ROWS for exporter in exporters]
    scores = [
        score_file(f"{row.name}, {exporter}", open_tagged(path), row.layers)
        for row, exporter, path in exports
        if path is not None
    ]
    invented = {name: [path for item in exporters for path in score_plain(name, item)] for name in PLAIN}
    return compose_table(scores, invented)


def compose_table(scores: Sequence[Score], invented: Mapping[str, Sequence[str]]) -> Table:
    """
    invented  by the name of a network without layers: the paths that were found in it
    """
    counted, nodes = sum(score.counted for score in scores), sum(score.nodes for score in scores)
    right = sum(score.right for score in scores)
    rows = [_compose_row(score) for score in scores]
    rows.append(("all", f"{counted} of {len(scores)} right", "", f"{nodes:,}", percent_of(right, nodes)))
    holds = counted >= LEAST_COUNTED * len(scores) and right >= LEAST_RIGHT * nodes and not any(invented.values())
    notes = [f"{name}: {len(paths)} layers and parts invented" for name, paths in invented.items()]
    return Table("Structure alone", _TEXT, _COLUMNS, tuple(rows), holds, tuple(notes))


def _compose_row(score: Score) -> tuple[str, ...]:
    counts = (" + ".join(map(str, sorted(runs.values()))) or "none" for runs in (score.true_layers, score.layers))
    return (score.name, *counts, f"{score.nodes:,}", percent_of(score.right, score.nodes))


if __name__ == "__main__":
    sys.stdout.write(measure_structure(Options()).markdown())
