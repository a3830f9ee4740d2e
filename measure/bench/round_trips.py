"""What networkx reads from GraphML, and Model Explorer's own page from its graphs, against the model itself.

Compared are every node, initializer, input and output with its type, every edge with the ports at both ends, and every
attribute with its type and value (more than 16 elements of a tensor by their digest), with all metadata. `made by hand`
is a file with names that are not valid in XML or JavaScript, every kind of attribute, bodies and functions. Nothing may
be lost, and nothing may be there that is not in the model.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx

import modelexport as mx
from measure.bench.odd_model import odd_model
from measure.bench.plain_graph import PlainGraph, PlainNode, plain_graph
from measure.bench.read_back import Explorer, by_networkx, model_explorer
from measure.corpus.models import export_row
from measure.corpus.rows import EXPORTERS
from measure.pages import Table
from modelexport.errors import ExportFailed

ROWS = (
    *("bert", "gpt2", "llama", "t5", "vit", "resnet", "whisper", "albert", "clip", "mixtral", "wav2vec2"),
    *("branching", "step-by-step", "scanned", "long-short-term"),
)
COLUMNS = ("model", "exporter", "read by", "nodes", "edges", "attributes", "lost", "too many")


@dataclass(frozen=True)
class Loss:
    """How much there is, and what of it was not read back as it is (`lost`), or is there although it should not be."""

    nodes: int
    edges: int
    attributes: int
    lost: tuple[str, ...]
    added: tuple[str, ...]


def measure_round_trips() -> Table:
    rows, holds, notes = [], True, []
    with model_explorer() as explorer:
        for name, exporter, path in _files():
            sys.stderr.write(f"round_trips: {name} {exporter}\n")
            for reader, found in losses(path, explorer).items():
                holds &= not found.lost and not found.added
                counts = (found.nodes, found.edges, found.attributes, len(found.lost), len(found.added))
                rows.append((name, exporter, reader, *map(str, counts)))
                notes += [f"{name} {exporter} {reader}: {one}" for one in (found.lost + found.added)[:3]]
    return Table("Other people's viewers", (__doc__ or "").strip(), COLUMNS, tuple(rows), holds, tuple(notes))


def losses(path: Path, explorer: Explorer) -> dict[str, Loss]:
    """By the program that read it."""
    whole = plain_graph(path)
    with tempfile.TemporaryDirectory() as folder:
        graphml, graphs = Path(folder) / "model.graphml", Path(folder) / "model.json"
        mx.convert(path, graphml, "graphml")
        mx.convert(path, graphs, "model-explorer")
        return {
            "networkx": difference(whole, by_networkx(graphml)),
            "Model Explorer": difference(whole, explorer.read(graphs)),
        }


def difference(whole: PlainGraph, found: PlainGraph) -> Loss:
    lost = [f"node {key}" for key in whole.nodes if key not in found.nodes]
    lost += [f"edge {edge}" for edge in whole.edges - found.edges]
    added = [f"node {key}" for key in found.nodes if key not in whole.nodes]
    added += [f"edge {edge}" for edge in found.edges - whole.edges]
    count = 0
    for key, node in whole.nodes.items():
        before, after = dict(_parts(node)), dict(_parts(found.nodes[key])) if key in found.nodes else {}
        count += len(before)
        lost += [
            f"{what} of {key}: {value!r}, not {after.get(what)!r}"
            for what, value in before.items()
            if after.get(what) != value
        ]
        added += [f"{what} of {key}" for what in after if what not in before and not what.startswith("known")]
    return Loss(len(whole.nodes), len(whole.edges), count, tuple(lost), tuple(added))


def _parts(node: PlainNode) -> Iterator[tuple[str, object]]:
    """Everything that a node has, each under a name."""
    yield "kind", node.kind
    for group in ("texts", "attributes", "metadata", "known"):
        for name, value in getattr(node, group).items():
            yield f"{group} {name}", value
    for place, (value, kind) in enumerate(zip(node.outputs, node.types, strict=True)):
        if value:
            yield f"output {place}", (value, kind)


def _files() -> Iterator[tuple[str, str, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "odd.onnx"
        onnx.save(odd_model(), path)
        yield "made by hand", "", path
    for name in ROWS:
        for exporter in EXPORTERS:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.onnx"
                try:
                    export_row(name, exporter, path)
                except ExportFailed:
                    continue
                yield name, exporter, path
