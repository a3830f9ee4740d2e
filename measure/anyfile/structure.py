"""Structure alone: layers of networks without a single name, held against the record of the same network.

    python -m measure.anyfile.structure [ROWS...]

A layer is right if it is the layer of the same number in the same run. The truth is the record of our own export; the
file has neither its record nor any of its names, and its nodes are in another order.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from measure.anyfile.nameless import old_key, remove_names
from measure.anyfile.repeated import ROWS, Repeated, export_repeated
from measure.workers import BUILD
from modelexport.attribute.sources.structure import read_structure
from modelexport.errors import ModelExportError
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged
from modelexport.graph.index import index_model
from modelexport.record.hierarchy import ModuleCall, lineage_of
from modelexport.record.provenance import Attribution, Provenance

FOLDER = BUILD / "structure"
_LAYER = re.compile(r"(.*?)(?:stages\.(\d+)\.)?layers\.(\d+)(?:\.|$)")

Place = tuple[str, int]  # a run, and the number of a layer in it


@dataclass(frozen=True)
class Score:
    """One file: layers by run, as they are and as they were found, and how many nodes in layers are in the right one."""

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
    layers = number_layers({key: path for key, path in paths.items()}, file)
    same_run = match_runs(truth, layers)
    right = sum(key in layers and (same_run.get(layers[key][0]), layers[key][1]) == place for key, place in truth.items())
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


def number_layers(paths: Mapping[str, str], file: TaggedFile) -> dict[str, Place]:
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


def main(names: Sequence[str]) -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for row in ROWS:
        for exporter in ("torchscript", "dynamo"):
            path = folder / f"{row.name}-{exporter}.onnx"
            if (names and row.name not in names) or not path.exists():
                continue
            try:
                score = score_file(f"{row.name} {exporter}", open_tagged(path), row.layers)
            except Exception as error:
                import traceback
                traceback.print_exc()
                continue
            share = score.right / max(score.nodes, 1)
            sys.stdout.write(f"{'ok ' if score.counted else 'BAD'} {share:6.1%} {score.name:24} {dict(score.true_layers)} {dict(score.layers)}\n")


if __name__ == "__main__":
    main(sys.argv[2:])
