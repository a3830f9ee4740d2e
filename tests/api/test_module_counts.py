"""One definition of a module's own nodes and parameters, whichever verb is asked."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.support.exports import Exports
from tests.support.small_file import SmallFile, credited

import modelexport as mx
from modelexport.graph.file.tagged_file import open_tagged
from modelexport.inspect.analyze import ModuleFacts
from modelexport.record.hierarchy import parent_path
from modelexport.show.page.modules import module_columns
from modelexport.show.page.nodes import ModuleTree, Texts

Counts = dict[str, tuple[int, int, int, int]]


def analyzed(path: Path) -> Counts:
    return {module.path: _counts(module) for module in mx.analyze(path).modules}


def _counts(module: ModuleFacts) -> tuple[int, int, int, int]:
    return module.own.nodes, module.total.nodes, module.own.parameters, module.total.parameters


def costed(path: Path) -> Counts:
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
    for module in ("layers.0", "layers.1", "layers.1.fc"):
        found = mx.diff(path, path, left_module=module)
        assert (found.left.nodes, found.right.nodes) == (counts[module][1], counts[module][1])
