"""What the strategies must show, on real architectures and both exporters.

The reference is the export's own answer, which rests on the exporter's scopes and FX nodes; `htp` and `usage_based`
look at neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from tests.architectures import NAMES, build
from tests.conftest import Exports
from tests.stranger import plain_copy, renamed_copy

import modelexport as mx
from modelexport.graph.index import Graph, index_model
from modelexport.graph.model_file import open_model
from modelexport.record.evidence import Attribution, EvidenceKind
from modelexport.record.hierarchy import ModuleCall
from modelexport.roles.layers import Layers

EXPORTERS = ("dynamo", "torchscript")
both = pytest.mark.parametrize("exporter", EXPORTERS)
every = pytest.mark.parametrize("name", NAMES)

Pairs = list[tuple[str, Attribution, Attribution]]


@pytest.fixture(scope="module")
def unnamed(exports: Exports, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Pairs]:
    """For each node of a file without names, what `htp` says and what the export says."""

    @cache
    def judged(name: str, exporter: str) -> Pairs:
        folder = tmp_path_factory.mktemp(f"unnamed-{name}-{exporter}")
        own = exports(name, exporter)
        names = renamed_copy(own.path, folder / "m.onnx")
        found = mx.attach(folder / "m.onnx", build(name), folder / "out.onnx", strategy="htp").provenance
        return list(_pairs(found, own.provenance, names))

    return judged


def _pairs(
    found: mx.Provenance, own: mx.Provenance, names: Mapping[str, str]
) -> Iterator[tuple[str, Attribution, Attribution]]:
    for key, entry in own.nodes.items():
        yield key, found.nodes[names.get(key, key)].attribution, entry.attribution


def _graph(path: Path) -> Graph:
    return index_model(open_model(path).proto)


@every
@both
def test_htp_attributes_a_file_without_names(name: str, exporter: str, unnamed: Callable[[str, str], Pairs]) -> None:
    pairs = unnamed(name, exporter)
    attributed = sum(1 for _, found, _ in pairs if found.owners)
    assert attributed >= 0.98 * len(pairs)


@every
@both
def test_a_unique_value_is_never_wrong(name: str, exporter: str, unnamed: Callable[[str, str], Pairs]) -> None:
    by_value = [item for item in unnamed(name, exporter) if _by_value(item[1])]
    wrong = [(key, found.modules, own.modules) for key, found, own in by_value if set(found.owners) - set(own.owners)]
    assert by_value
    assert not wrong


def _by_value(attribution: Attribution) -> bool:
    return any(item.kind is EvidenceKind.VALUE for item in attribution.evidence)


@every
@both
def test_htp_agrees_where_it_is_sure(name: str, exporter: str, unnamed: Callable[[str, str], Pairs]) -> None:
    sure = [item for item in unnamed(name, exporter) if item[1].confidence >= mx.Confidence.STRONG]
    other = [(key, found, own) for key, found, own in sure if set(found.owners) - set(own.owners)]
    # TorchScript shares equal work of several modules and names one of them: there more owners are right.
    assert not [(key, found.modules, own.modules) for key, found, own in other if not _shared(found, own)]


def _shared(found: Attribution, own: Attribution) -> bool:
    return set(own.owners) < set(found.owners)


@every
@both
def test_usage_based_is_never_wrong(name: str, exporter: str, exports: Exports, tmp_path: Path) -> None:
    own = exports(name, exporter)
    plain = plain_copy(own.path, tmp_path / "m.onnx")
    found = mx.attach(plain, build(name), tmp_path / "out.onnx", strategy="usage_based").provenance
    wrong = [
        (key, found.nodes[key].attribution.modules, entry.attribution.modules)
        for key, entry in own.provenance.nodes.items()
        if set(found.nodes[key].attribution.owners) - set(entry.attribution.owners)
    ]
    assert not wrong


@pytest.mark.parametrize(("kind", "share"), [("plain", 0.99), ("renamed", 0.97)])
@both
def test_attach_finds_the_modules_of_our_own_export(
    kind: str, share: float, exporter: str, exports: Exports, tmp_path: Path
) -> None:
    same = total = 0
    for name in NAMES:
        own = exports(name, exporter)
        graph = _graph(own.path)
        file = tmp_path / f"{name}.onnx"
        names = renamed_copy(own.path, file) if kind == "renamed" else {}
        if kind == "plain":
            plain_copy(own.path, file)
        found = mx.attach(file, build(name), tmp_path / "out.onnx").provenance
        pairs = [item for item in _pairs(found, own.provenance, names) if item[0] in graph.computed]
        agreeing = sum(1 for _, theirs, ours in pairs if theirs.ancestor == ours.ancestor)
        assert agreeing >= 0.97 * len(pairs), name
        same, total = same + agreeing, total + len(pairs)
    assert same >= share * total


@pytest.mark.parametrize("strategy", ["htp", "fx_graph", "usage_based", "universal", "all"])
@pytest.mark.parametrize("name", ["bert", "albert", "t5"])
@both
def test_no_strategy_credits_another_layer(
    strategy: str, name: str, exporter: str, exports: Exports, tmp_path: Path
) -> None:
    own = exports(name, exporter).provenance
    found = mx.export(build(name), tmp_path / "m.onnx", exporter=exporter, strategy=strategy, no_check=True).provenance
    layers = Layers(own.hierarchy)
    foreign = {
        key: (entry.attribution.modules, found.nodes[key].attribution.modules)
        for key, entry in own.nodes.items()
        if _layers(layers, found.nodes[key].attribution) - _layers(layers, entry.attribution)
        and not _shared(found.nodes[key].attribution, entry.attribution)
    }
    assert not foreign


def _layers(layers: Layers, attribution: Attribution) -> set[ModuleCall]:
    """The layers that something is credited to; what lies outside of all layers is credited to none."""
    alone = (Attribution((owner,), owner, attribution.confidence) for owner in attribution.owners)
    return {block for item in alone if (block := layers.block(item)) is not None}
