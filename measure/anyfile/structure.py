"""Structure alone: layers of networks without a single name, held against the record of the same network.

    python -m measure anyfile structure

A layer is right if it is the layer of the same number in the same run. The truth is the record of our own export; the
file has neither its record nor any of its names, and its nodes are in another order. It is opened as users open theirs.
"""

from __future__ import annotations

import re
import sys
import tempfile
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
from modelexport.errors import ModelExportError
from modelexport.graph.algorithms import group_by_key
from modelexport.graph.file.tagged_file import open_tagged
from modelexport.record.hierarchy import ROOT, ModuleCall, lineage_of
from modelexport.record.provenance import Attribution, Confidence, Provenance
from modelexport.transform.tools.tool import read_whole, write_whole

FOLDER = BUILD / "structure"
_LAYER = re.compile(r"(.*?)(?:stages\.(\d+)\.)?layers\.(\d+)(?:\.|$)")

_TEXT = (
    "Every name is removed, nodes are in another order, and layers are looked for in what is left: equal blocks in a "
    "row. The truth are the calls of the classes that are the layers of a network, from the record that was removed. "
    "A node is right if it is in the layer of the same number in the same run of layers, wherever `load` says that it "
    "is. Of each exporter's files, of 30 networks or more, the number of layers must be right in 90 % (27 of 30), and "
    "so must the layer of 92 % of the nodes in layers. Below are 10 networks in which nothing repeats: no module may "
    "be found in them."
)
_COLUMNS = ("network", "layers", "found", "nodes in layers", "in the right layer")
LEAST_NETWORKS, LEAST_COUNTED, LEAST_RIGHT, LEAST_PLAIN = 30, 27 / 30, 0.92, 10

Place = tuple[str, int]  # a run, and the number of a layer in it


@dataclass(frozen=True)
class Score:
    """One file: layers by run, as they are and as they were found; nodes in layers, and those in the right one."""

    name: str
    exporter: str
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


def score_file(row: Repeated, exporter: str, path: Path) -> Score:
    truth = true_places(open_tagged(path).provenance, row.layers)
    provenance, names = load_nameless(path)
    layers = number_layers(list_paths(provenance, names))
    same_run = match_runs(truth, layers)
    right = sum(
        key in layers and (same_run.get(layers[key][0]), layers[key][1]) == place for key, place in truth.items()
    )
    return Score(row.name, exporter, count_layers(truth.values()), count_layers(layers.values()), len(truth), right)


def load_nameless(path: Path) -> tuple[Provenance, Mapping[str, str]]:
    """What `load` says of a file whose names were removed, and the old name of every value."""
    nameless, names = remove_names(read_whole(path))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "nameless.onnx"
        write_whole(nameless, file)
        return mx.load(file), names


def list_paths(provenance: Provenance, names: Mapping[str, str]) -> dict[str, str]:
    """By old key of a node: the module that it is in; nodes of which nothing is known are left out."""
    attributions = {old_key(key, names): entry.attribution for key, entry in provenance.nodes.items()}
    return {
        key: attribution.ancestor.path
        for key, attribution in attributions.items()
        if attribution.ancestor is not None and attribution.confidence > Confidence.FALLBACK
    }


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
    """Modules that are found in a network that has no layers."""
    path = folder / f"{name.replace(' ', '_')}-{exporter}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        build, example = PLAIN[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mx.export(build().eval(), path, inputs=(example(),), exporter=exporter, no_check=True)
    provenance, _ = load_nameless(path)
    return sorted(provenance.hierarchy.modules.keys() - {ROOT})


def measure_structure(options: Options) -> Table:
    """The section of the page. Files stay in their folder for the next run; remove it if a network changes."""
    exporters = options.exporters or EXPORTERS
    exports = [(row, exporter, export_once(row, exporter)) for row in ROWS for exporter in exporters]
    scores = [score_file(row, exporter, path) for row, exporter, path in exports if path is not None]
    missing = [f"{row.name}, {exporter}" for row, exporter, path in exports if path is None]
    invented = {name: [path for item in exporters for path in score_plain(name, item)] for name in PLAIN}
    return compose_table(scores, invented, missing)


def compose_table(scores: Sequence[Score], invented: Mapping[str, Sequence[str]], missing: Sequence[str] = ()) -> Table:
    """
    invented  by the name of a network without layers: the paths that were found in it
    missing   what torch does not export
    """
    by_exporter = group_by_key((score.exporter, score) for score in scores)
    rows = [*map(_compose_row, scores), *(_compose_sum(exporter, own) for exporter, own in by_exporter.items())]
    holds = bool(scores) and all(map(hold_limits, by_exporter.values()))
    nothing_invented = len(invented) >= LEAST_PLAIN and not any(invented.values())
    notes = [f"{name}: {len(paths)} layers and parts invented" for name, paths in invented.items()]
    notes += [f"{name}: not exported by torch" for name in missing]
    return Table("Structure alone", _TEXT, _COLUMNS, tuple(rows), holds and nothing_invented, tuple(notes))


def hold_limits(scores: Sequence[Score]) -> bool:
    """Whether the files of one exporter are as many and as right as they must be."""
    counted, right = sum(score.counted for score in scores), sum(score.right for score in scores)
    is_counted = counted >= LEAST_COUNTED * len(scores)
    return len(scores) >= LEAST_NETWORKS and is_counted and right >= LEAST_RIGHT * sum(score.nodes for score in scores)


def _compose_row(score: Score) -> tuple[str, ...]:
    counts = (" + ".join(map(str, sorted(runs.values()))) or "none" for runs in (score.true_layers, score.layers))
    nodes = f"{score.nodes:,}", percent_of(score.right, score.nodes)
    return (f"{score.name}, {score.exporter}", *counts, *nodes)


def _compose_sum(exporter: str, scores: Sequence[Score]) -> tuple[str, ...]:
    counted, nodes = sum(score.counted for score in scores), sum(score.nodes for score in scores)
    right = percent_of(sum(score.right for score in scores), nodes)
    return (f"all, {exporter}", f"{counted} of {len(scores)} right", "", f"{nodes:,}", right)


if __name__ == "__main__":
    sys.stdout.write(measure_structure(Options()).markdown())
