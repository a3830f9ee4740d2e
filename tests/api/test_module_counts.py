"""One definition of a module's own nodes and parameters, whichever verb is asked."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import onnx
import pytest
from onnx import helper
from tests.support.exports import Exports
from tests.support.small_file import SmallFile, credited

import modelexport as mx
from modelexport.api.read import answer
from modelexport.graph.file.tagged_file import STALE_NOTE, open_tagged
from modelexport.inspect.analyze import Analysis, ModuleFacts
from modelexport.record.hierarchy import parent_path
from modelexport.record.results.diff import Source
from modelexport.show.data.results import to_json
from modelexport.show.page.modules import module_columns
from modelexport.show.page.nodes import ModuleTree, Texts

Counts = dict[str, tuple[int, int, int, int]]


def analyzed(path: Path) -> Counts:
    return {module.path: _counts(module) for module in mx.analyze(path).modules}


def _counts(module: ModuleFacts) -> tuple[int, int, int, int]:
    return module.own.nodes, module.total.nodes, module.own.parameters, module.total.parameters


def written(analysis: Analysis) -> Counts:
    """As users read it in JSON; what is shared is told apart there too."""
    modules = json.loads(to_json(analysis))["modules"]
    assert [module["shared"] for module in modules] == [module.own.shared for module in analysis.modules]
    return {
        module["path"]: (module["nodes"], module["nodes_total"], module["parameters"], module["parameters_total"])
        for module in modules
    }


def costed(path: Path) -> Counts:
    amounts = {module["path"]: module for module in json.loads(to_json(mx.cost(path)))["modules"]}
    for module in mx.cost(path).modules:
        assert (amounts[module.path]["own"]["nodes"], amounts[module.path]["total"]["nodes"]) == (
            module.own.nodes,
            module.total.nodes,
        )
    return {
        module.path: (module.own.nodes, module.total.nodes, module.own.parameters, module.total.parameters)
        for module in mx.cost(path).modules
        if module.path is not None
    }


def viewed(path: Path) -> Counts:
    """As the page adds it up: `nodes` from the own nodes of the modules inside, parameters as they are given."""
    file = open_tagged(path)
    tree = ModuleTree.of(file.provenance.hierarchy)
    columns = module_columns(file, tree, Texts([""]))
    paths = [row.item.path for row in tree.rows]
    totals = list(columns["nodes"])
    for number in reversed(range(1, len(paths))):
        totals[columns["parent"][number]] += totals[number]
    parameters = zip(columns["parameters"], columns["totals"]["parameters"], strict=True)
    rows = zip(paths, columns["nodes"], totals, parameters, strict=False)
    return {path: (own, total, *both) for path, own, total, both in rows}


def check_counts(path: Path) -> None:
    counts = analyzed(path)
    assert costed(path) == counts
    assert viewed(path) == counts
    analysis = mx.analyze(path)
    assert written(analysis) == counts
    for module, (own, total, _, _) in counts.items():
        inside = [one for one in counts if one and one != module and parent_path(one) == module]
        assert total == own + sum(counts[one][1] for one in inside), module
    unknown = sum(node.module is None for node in analysis.nodes)
    whole = counts[""][1] + unknown
    assert whole == mx.cost(path).total.nodes == len(analysis.nodes)
    found = mx.diff(path, path)
    assert found.left.nodes == found.right.nodes == whole


def check_profile(path: Path) -> None:
    """A profile has the nodes that ran: each is in the module that it is an own node of."""
    profile = mx.profile(path, runs=1, warmup=0, optimization="none")
    homes = {module.path: module.nodes for module in profile.modules if module.path is not None}
    ran = Counter(node.module for node in profile.nodes)
    hierarchy = mx.load(path).hierarchy
    for node in profile.nodes:
        assert node.module == hierarchy.common_module(mx.load(path).nodes[node.key].attribution.owners)
    counts = analyzed(path)
    for module, inside in homes.items():
        assert ran[module] <= counts[module][0]
        assert inside <= counts[module][1]


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_verbs_agree_on_an_export_and_on_what_a_tool_makes_of_it(
    exports: Exports, exporter: str, tmp_path: Path
) -> None:
    exported = exports("bert", exporter).path
    check_counts(exported)
    check_profile(exported)
    optimized = tmp_path / "optimized.onnx"
    mx.run_tool(exported, "ort:extended", optimized)
    check_counts(optimized)
    check_profile(optimized)
    folded = tmp_path / "folded.onnx"
    mx.fold(exported, folded)
    assert costed(folded) == analyzed(folded) == viewed(folded)


@pytest.mark.parametrize(
    "owners",
    [("layers.0.fc", "layers.1.fc"), ("layers.0", "layers.0.fc"), ("layers.0.fc", "layers.0.fc"), ("emb", "")],
)
def test_verbs_agree_on_shared_nodes(owners: tuple[str, str], tmp_path: Path) -> None:
    path = SmallFile().but(h0=credited(*dict.fromkeys(owners))).write(tmp_path / "a.onnx")
    check_counts(path)
    shared = sum(module.own.shared for module in mx.analyze(path).modules)
    assert shared == (len(set(owners)) > 1)


def test_a_module_of_a_diff_has_the_nodes_that_analyze_says(tmp_path: Path) -> None:
    path = SmallFile().but(h0=credited("layers.0.fc", "layers.1.fc")).write(tmp_path / "a.onnx")
    counts = analyzed(path)
    for module in ("layers", "layers.0", "layers.1", "layers.1.fc"):
        found = mx.diff(path, path, left_module=module)
        assert (found.left.nodes, found.right.nodes) == (counts[module][1], counts[module][1])


@pytest.fixture
def stale(tmp_path: Path) -> Path:
    """A tool has put a node between two others and changed the operator of one, and the record does not know."""
    path = SmallFile().write(tmp_path / "stale.onnx")
    model = onnx.load(path)
    model.graph.node[1].input[0] = "e2"
    model.graph.node[2].op_type = "Sigmoid"
    model.graph.node.insert(1, helper.make_node("Identity", ["e"], ["e2"], name="late"))
    onnx.save(model, path)
    return path


def test_verbs_agree_on_a_file_that_was_changed_since(stale: Path) -> None:
    """All answer from what the record still says: the new node has no module, the changed one keeps its own."""
    check_counts(stale)
    check_profile(stale)
    counts = analyzed(stale)
    assert sum(own for own, *_ in counts.values()) == 6
    for module, (_, total, _, _) in counts.items():
        if total and module:
            assert len(mx.query(stale, f"module={module} | module={module}.**")) == total
            part = mx.diff(stale, stale, left_module=module)
            assert (part.left.nodes, part.right.nodes) == (total, total)


def test_verbs_say_the_same_of_a_file_that_was_changed_since(stale: Path, tmp_path: Path) -> None:
    assert not mx.analyze(stale).file.matches_record
    assert STALE_NOTE in mx.cost(stale).notes
    assert STALE_NOTE in mx.profile(stale, runs=1, warmup=0).notes
    assert STALE_NOTE in answer(stale, "op=MatMul").remarks
    assert STALE_NOTE in mx.view(stale, tmp_path / "page.html").page.notes
    found = mx.diff(stale, stale)
    assert (found.left.source, found.right.source) == (Source.RECORD, Source.RECORD)
    assert f"{stale}: {STALE_NOTE}" in found.notes


def test_a_module_that_is_gone_has_the_nodes_that_its_stale_file_counts(stale: Path, tmp_path: Path) -> None:
    """Both files were changed since, so that neither lends its modules."""
    other = tmp_path / "other.onnx"
    model = onnx.load(stale)
    for node in model.graph.node:
        node.input[:] = ["r0" if name == "r1" else name for name in node.input]
    kept = [node for node in model.graph.node if node.output[0] not in ("h1", "r1")]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    onnx.save(model, other)
    [gone] = mx.diff(stale, other).modules
    _, total, _, parameters = analyzed(stale)["layers.1"]
    assert (gone.left, gone.nodes.left, gone.parameters) == ("layers.1", total, parameters)


def test_a_stale_file_borrows_the_modules_of_one_that_is_up_to_date(stale: Path, tmp_path: Path) -> None:
    found = mx.diff(SmallFile().write(tmp_path / "current.onnx"), stale)
    assert (found.left.source, found.right.source) == (Source.RECORD, Source.OTHER)
    assert any(
        f"{stale} was changed after its record was made: its modules are those of" in note for note in found.notes
    )
