"""What holds of every relinking, with real tools on small models."""

from __future__ import annotations

from pathlib import Path
from random import Random

import onnx
import pytest
from tests.support.exports import Exports
from tests.support.foreign_copies import renamed_copy
from tests.support.scrambling import reordered

import modelexport as mx
from modelexport.record.lineage import Relation

pytestmark = pytest.mark.slow

TOOLS = ("ort:all", "ort:basic", "onnxslim", "int8", "fp16", "qdq", "int4", "onnxscript", "ort_fusions", "transformers")
# Each of them leaves something for the next one to do.
CHAINS = (("ort:basic", "ort:all"), ("onnxslim", "int8"), ("int8", "ort:extended"), ("fp16", "ort:basic"))
CASES = [("bert", "dynamo"), ("bert", "torchscript")]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def path(request: pytest.FixtureRequest, exports: Exports) -> Path:
    return exports(*request.param).path


def ran(path: Path, tool: str, target: Path) -> mx.RelinkResult:
    return mx.run_tool(path, tool, target, samples=1)


@pytest.mark.parametrize("tool", TOOLS)
def test_nothing_becomes_surer_and_nothing_fused_belongs_to_one_of_several(
    path: Path, tmp_path: Path, tool: str
) -> None:
    before, found = mx.load(path), ran(path, tool, tmp_path / "out.onnx")
    assert found.ok
    for key, link in found.lineage.nodes.items():
        mine = found.provenance.nodes[key].attribution
        sources = [before.nodes[source].attribution for source in link.sources]
        known = [source for source in sources if source.owners]
        assert mine.confidence <= min((source.confidence for source in known), default=mx.Confidence.NONE)
        assert mine.confidence <= link.confidence
        assert set(mine.owners) == {owner for source in known for owner in source.owners}


def test_a_file_comes_from_itself(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "same.onnx"
    found = mx.relink(path, target, before=path)
    before = mx.load(path)
    assert found.ok
    assert found.provenance.nodes == before.nodes == mx.load(target).nodes
    assert found.provenance.initializers == before.initializers
    assert {link.relation for link in found.lineage.nodes.values()} == {Relation.KEPT}
    assert {link.confidence for link in found.lineage.nodes.values()} == {mx.Confidence.EXACT}
    assert all(link.sources == (key,) for key, link in found.lineage.nodes.items())
    assert found.lineage.consistency.covered == found.lineage.consistency.nodes


@pytest.mark.parametrize("chain", CHAINS, ids="+".join)
def test_step_by_step_finds_all_that_one_step_finds(path: Path, tmp_path: Path, chain: tuple[str, str]) -> None:
    middle, end = tmp_path / "middle.onnx", tmp_path / "end.onnx"
    ran(path, chain[0], middle)
    steps = ran(middle, chain[1], end).provenance
    direct = mx.relink(end, before=path)
    for key, entry in direct.provenance.nodes.items():
        at_once, by_steps = set(entry.attribution.owners), set(steps.nodes[key].attribution.owners)
        if direct.lineage.nodes[key].relation is Relation.INTRODUCED:
            # What a tool brought along belongs to its neighbour. That may have been one module's before the second
            # tool ran, and several's after.
            assert at_once & by_steps
        else:
            assert at_once <= by_steps


@pytest.mark.parametrize("tool", ["", "ort:all", "int8"])
def test_names_do_not_matter(path: Path, tmp_path: Path, tool: str) -> None:
    here = path
    if tool:
        here = tmp_path / "out.onnx"
        ran(path, tool, here)
    names = renamed_copy(here, tmp_path / "bare.onnx")
    named, bare = mx.relink(here, before=path).provenance, mx.relink(tmp_path / "bare.onnx", before=path).provenance
    unlike = {
        key: (entry.attribution.modules, bare.nodes[names.get(key, key)].attribution.modules)
        for key, entry in named.nodes.items()
        if set(entry.attribution.modules) != set(bare.nodes[names.get(key, key)].attribution.modules)
    }
    assert unlike == {}


@pytest.mark.parametrize("tool", ["", "ort:all"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_of_nodes_in_the_file_does_not_matter(path: Path, tmp_path: Path, tool: str, seed: int) -> None:
    here = path
    if tool:
        here = tmp_path / "out.onnx"
        ran(path, tool, here)
    other = tmp_path / "other.onnx"
    onnx.save(reordered(onnx.load(here), Random(seed)), other)
    one, two = mx.relink(here, before=path).provenance, mx.relink(other, before=path).provenance
    assert {key: set(entry.attribution.owners) for key, entry in one.nodes.items()} == {
        key: set(entry.attribution.owners) for key, entry in two.nodes.items()
    }


def test_a_file_out_of_order_is_understood(path: Path, tmp_path: Path) -> None:
    model = onnx.load(path)
    nodes = list(reversed(model.graph.node))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, tmp_path / "reversed.onnx")
    one, two = mx.load(path), mx.relink(tmp_path / "reversed.onnx", before=path).provenance
    assert {key: entry.attribution for key, entry in two.nodes.items()} == {
        key: entry.attribution for key, entry in one.nodes.items()
    }
