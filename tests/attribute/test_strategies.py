"""What the strategies must show, on real architectures and both exporters.

The reference is the export's own answer, which rests on the exporter's scopes and FX nodes. `htp` and `usage_based`
look at neither, and files without names have none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnx
import pytest
from tests.support.architectures import NAMES, build
from tests.support.exports import Exports
from tests.support.foreign_copies import plain_copy, renamed_copy

import modelexport as mx
from modelexport.api import export_run as exporting
from modelexport.api.attach import judge_file
from modelexport.api.environment import Clock
from modelexport.attribute.judge import AttributionInput, AttributionResult, attribute_graph
from modelexport.attribute.roles.assign import Layers
from modelexport.graph.file.reading import open_model
from modelexport.graph.file.tagged_file import open_tagged
from modelexport.graph.index import Graph, Node, index_model
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.model_source import ModelSource
from modelexport.record.provenance import Attribution, Claim, Confidence, EvidenceKind, Origin

pytestmark = pytest.mark.slow

both = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
every = pytest.mark.parametrize("name", NAMES)


@dataclass(frozen=True)
class Judged:
    """A file of a stranger: what was found out about it, beside our own export of the same model."""

    verdict: AttributionResult
    own: mx.Provenance
    graph: Graph
    names: Mapping[str, str]

    def claims(self, strategy: str) -> Iterator[tuple[Node, Claim, Attribution]]:
        """What a strategy says of each node, and what the export says."""
        said = next(item.claims.nodes for item in self.verdict.judged if item.strategy == strategy)
        for node in self.graph.nodes:
            claim = said.get(self.names.get(node.key, node.key))
            if claim is not None:
                yield node, claim, self.own.nodes[node.key].attribution

    def answers(self) -> Iterator[tuple[Node, Attribution, Attribution]]:
        for node in self.graph.nodes:
            found = self.verdict.provenance.nodes[self.names.get(node.key, node.key)].attribution
            yield node, found, self.own.nodes[node.key].attribution


Stranger = Callable[[str, str, str], Judged]


@pytest.fixture(scope="module")
def stranger(exports: Exports, tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    @cache
    def judged(name: str, exporter: str, kind: str) -> Judged:
        file = tmp_path_factory.mktemp(f"{kind}-{name}-{exporter}") / "m.onnx"
        own = exports(name, exporter)
        names = renamed_copy(own.path, file) if kind == "renamed" else {}
        if kind == "plain":
            plain_copy(own.path, file)
        verdict = judge_file(open_tagged(file), ModelSource(build(name)), "all", Clock(None))
        return Judged(verdict, own.provenance, index_model(open_model(own.path).proto), names)

    return judged


@every
@both
def test_htp_attributes_a_file_without_names(name: str, exporter: str, stranger: Stranger) -> None:
    judged = stranger(name, exporter, "renamed")
    assert len(list(judged.claims("htp"))) >= 0.98 * len(judged.graph.nodes)


@every
@both
def test_a_unique_value_is_never_wrong(name: str, exporter: str, stranger: Stranger) -> None:
    claims = list(stranger(name, exporter, "renamed").claims("htp"))
    by_value = [item for item in claims if any(reason.kind is EvidenceKind.VALUE for reason in item[1].evidence)]
    assert by_value
    assert not [_shown(*item) for item in by_value if set(item[1].owners) != set(item[2].owners)]


@every
@both
def test_htp_is_right_where_it_is_sure(name: str, exporter: str, stranger: Stranger) -> None:
    claims = list(stranger(name, exporter, "renamed").claims("htp"))
    sure = [item for item in claims if item[1].confidence >= Confidence.STRONG]
    assert not [_shown(*item) for item in sure if not (_right(*item) or _shares(item[1], item[2]))]


@every
@both
def test_usage_based_is_never_wrong(name: str, exporter: str, stranger: Stranger) -> None:
    for kind in ("plain", "renamed"):
        claims = stranger(name, exporter, kind).claims("usage_based")
        assert not [_shown(*item) for item in claims if set(item[1].owners) != set(item[2].owners)]


@pytest.mark.parametrize(("kind", "share"), [("plain", 0.99), ("renamed", 0.97)])
@both
def test_attach_finds_the_modules_of_our_own_export(kind: str, share: float, exporter: str, stranger: Stranger) -> None:
    same: list[bool] = []
    for name in NAMES:
        judged = stranger(name, exporter, kind)
        answers = [item for item in judged.answers() if item[0].key in judged.graph.computed]
        here = [found.ancestor == own.ancestor for _, found, own in answers]
        assert sum(here) >= 0.97 * len(here), name
        same += here
    assert sum(same) >= share * len(same)


@pytest.mark.parametrize("name", ["bert", "albert", "t5"])
@both
def test_no_strategy_credits_another_layer(
    name: str, exporter: str, exports: Exports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts: list[AttributionResult] = []

    def noted(scene: AttributionInput, origin: Origin) -> AttributionResult:
        verdicts.append(attribute_graph(scene, origin))
        return verdicts[-1]

    monkeypatch.setattr(exporting, "attribute_graph", noted)
    mx.export(build(name), tmp_path / "m.onnx", exporter=exporter, strategy="all", no_check=True)
    own = exports(name, exporter)
    judged = Judged(verdicts[0], own.provenance, index_model(open_model(own.path).proto), {})
    layers = _LayersOf(judged)
    assert {item.strategy for item in verdicts[0].judged} >= {"htp", "fx_graph", "usage_based", "universal"}
    for item in verdicts[0].judged:
        foreign = [_shown(*entry) for entry in judged.claims(item.strategy) if layers.foreign(*entry)]
        assert not foreign, item.strategy


class _LayersOf:
    """The layers that nodes of an export belong to."""

    def __init__(self, judged: Judged) -> None:
        self._judged = judged
        self._layers = Layers(judged.own.hierarchy)

    def foreign(self, node: Node, claim: Claim, own: Attribution) -> bool:
        """Whether a claim names a layer that neither issued the node nor is the one that it serves."""
        right = self._of(own.owners) | self._served(node)
        return bool(self._of(claim.owners) - right) and not _shares(claim, own)

    def _served(self, node: Node) -> set[ModuleCall]:
        """TorchScript gives shape arithmetic of one layer the name of its twin in another: what it is for tells."""
        graph, found, seen = self._judged.graph, set[ModuleCall](), {node.key}
        waiting = [node] if node.key not in graph.computed else []
        while waiting:
            for reader in graph.successors(waiting.pop()):
                found |= self._of(self._judged.own.nodes[reader.key].attribution.owners)
                if reader.key not in graph.computed and reader.key not in seen:
                    seen.add(reader.key)
                    waiting.append(reader)
        return found

    def _of(self, owners: tuple[ModuleCall, ...]) -> set[ModuleCall]:
        alone = (Attribution((owner,), owner, Confidence.EXACT) for owner in owners)
        return {block for item in alone if (block := self._layers.block(item)) is not None}


def _right(node: Node, claim: Claim, own: Attribution) -> bool:
    return set(claim.owners) <= set(own.owners)


def _shares(claim: Claim, own: Attribution) -> bool:
    """TorchScript keeps equal work of several modules once and names one of them: there, more owners are right."""
    return set(own.owners) < set(claim.owners)


def _shown(node: Node, claim: Claim, own: Attribution) -> tuple[object, ...]:
    return node.key, node.op_type, tuple(map(str, claim.owners)), own.modules, claim.confidence.label


def test_a_file_that_lies_about_its_scopes_is_not_believed(exports: Exports, tmp_path: Path) -> None:
    own = exports("bert", "dynamo")
    model = onnx.load(plain_copy(own.path, tmp_path / "m.onnx"))
    swapped = {"layer.0": "layer.1", "layer.1": "layer.0"}
    for node in model.graph.node:
        for item in node.metadata_props:
            item.value = re.sub(r"layer\.[01]", lambda found: swapped[found[0]], item.value)
    onnx.save(model, tmp_path / "m.onnx")
    result = mx.attach(tmp_path / "m.onnx", build("bert"), tmp_path / "out.onnx")
    told = [entry for entry in own.provenance.nodes.values() if entry.attribution.layer_id is not None]
    found = {entry.key: result.provenance.nodes[entry.key].attribution for entry in told}
    assert any("enhanced_semantic not heard" in note for note in result.notes)
    wrong = [entry.key for entry in told if found[entry.key].layer_id not in (None, entry.attribution.layer_id)]
    assert not wrong
