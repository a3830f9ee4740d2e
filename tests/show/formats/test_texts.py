"""dot, mermaid and CSV: what is written can be read by their rules, and no name breaks out of its quotes."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import onnx
import pytest
from measure.bench.odd_model import NAMES, odd_model
from tests.support.exports import Exports
from tests.support.hostile_names import PATHS, hostile_file

import modelexport as mx
from modelexport.show.formats.dot_mermaid_graphml_csv import COLUMNS, MOST_CHARACTERS, MOST_EDGES

# A statement of a dot file as we write them: whatever is in quotes has its quotes and backslashes escaped.
QUOTED = r'"(?:[^"\\\n]|\\.)*"'
ATTRIBUTES = rf"\[\w+={QUOTED}(?:, \w+={QUOTED})*\]"
DOT = re.compile(
    rf"digraph {QUOTED} \{{|subgraph cluster_\d+ \{{|label={QUOTED};|\}}"
    rf"|(?:graph|node|n\d+|n\d+ -> n\d+) {ATTRIBUTES};"
)
SAFE = r'"(?:[\w .,()]|#\d+;|<br/>)+"'
MERMAID = re.compile(
    rf"flowchart TB|subgraph g\d+\[{SAFE}\]|end|n\d+\[{SAFE}\]|n\d+\(\[{SAFE}\]\)|n\d+ --> n\d+", re.ASCII
)


def lines(path: Path, to: str, folder: Path, depth: int | None = None) -> list[str]:
    written = mx.convert(path, folder / f"a.{to}", to, depth=depth).path
    return written.read_text(encoding="utf-8").splitlines()


def odd_file(folder: Path) -> Path:
    onnx.save(odd_model(), folder / "odd.onnx")
    return folder / "odd.onnx"


@pytest.mark.parametrize(("to", "rule"), [("dot", DOT), ("mermaid", MERMAID)])
def test_every_line_keeps_to_the_rules(to: str, rule: re.Pattern[str], tmp_path: Path) -> None:
    for path in (hostile_file(tmp_path / "hostile.onnx"), odd_file(tmp_path)):
        written = lines(path, to, tmp_path)
        assert [line for line in written if not rule.fullmatch(line)] == []
        opened = sum(line.startswith(("digraph", "subgraph")) for line in written)
        assert opened == sum(line in ("}", "end") for line in written)


def test_dot_has_a_cluster_for_each_module_and_all_nodes(small_path: Path, tmp_path: Path) -> None:
    written = lines(small_path, "dot", tmp_path)
    assert 'nslimit="2"' in written[1]  # without it, dot takes minutes for some
    clusters = [line for line in written if line.startswith("label=")]
    assert len(clusters) == 5
    assert 'label="layers.0 (Block)";' in clusters
    assert sum(re.match(r"n\d+ \[", line) is not None for line in written) == 8  # six nodes, the input and the output
    assert sum("->" in line for line in written) == 8


def test_a_label_of_dot_says_what_the_name_was(tmp_path: Path) -> None:
    text = "\n".join(lines(hostile_file(tmp_path / "hostile.onnx"), "dot", tmp_path))
    quoted = PATHS[NAMES.index("\"quoted\" 'twice' `thrice`")].replace('"', '\\"')
    assert f'label="{quoted} (Class{quoted})"' in text


def test_mermaid_shows_modules_with_what_flows_between_them(small_path: Path, tmp_path: Path) -> None:
    assert lines(small_path, "mermaid", tmp_path, depth=1) == [
        "flowchart TB",
        'n0(["ids"])',
        'n1["emb (Embedding)<br/>1 node"]',
        'n2["layers.0 (Block)<br/>2 nodes"]',
        'n3["layers.1 (Block)<br/>2 nodes"]',
        'n4["own nodes<br/>1 node"]',
        'n5(["y"])',
        "n0 --> n1",
        "n1 --> n2",
        "n2 --> n3",
        "n3 --> n4",
        "n1 --> n4",
        "n4 --> n5",
    ]


def test_a_depth_shows_what_is_inside(small_path: Path, tmp_path: Path) -> None:
    written = lines(small_path, "mermaid", tmp_path, depth=2)
    inside = written.index('subgraph g0["layers.0 (Block)"]')
    assert written[inside + 1 : inside + 4] == ['n2["fc (Linear)<br/>1 node"]', 'n3["own nodes<br/>1 node"]', "end"]


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_mermaid_keeps_to_its_limits(exporter: str, exports: Exports, tmp_path: Path) -> None:
    path = exports("t5", exporter).path
    for depth in (None, 1, 99):
        written = mx.convert(path, tmp_path / "a.mmd", "mermaid", depth=depth).path.read_text()
        assert len(written) <= MOST_CHARACTERS
        assert written.count("-->") <= MOST_EDGES


def test_csv_has_a_row_for_each_node_of_every_graph(tmp_path: Path) -> None:
    with mx.convert(odd_file(tmp_path), tmp_path / "a.csv", "csv").path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == COLUMNS
    assert len(rows) == len(NAMES) + 8 + 2 * (3 + 1) + 2 * 2
    found = {row[header.index("key")]: row for row in rows}
    assert found["squared"][header.index("inputs")] == "x; x"
    assert found["own::Twice|w"][header.index("graph")] == "own::Twice"
    assert "ints=[1, -2]" in found["everything"][header.index("attributes")]


def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    with mx.convert(odd_file(tmp_path), tmp_path / "a.csv", "csv").path.open(newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert "'=cmd()" in cells
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@")) or not cell.isprintable()]
