"""Reading back what real exports recorded."""

from __future__ import annotations

import json

import pytest
from tests.support.architectures import NAMES
from tests.support.exports import Exports

from modelexport.api.read import analyze, compare, validate
from modelexport.show.data.results import to_json
from modelexport.show.text.checks import comparison_tables
from modelexport.show.text.console import as_text

EXPORTERS = ("dynamo", "torchscript")


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_correct_export_raises_no_alarm(exports: Exports, name: str, exporter: str) -> None:
    assert validate(exports(name, exporter).path, check_consistency=True).findings == ()


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", NAMES)
def test_an_analysis_counts_every_node_once(exports: Exports, name: str, exporter: str) -> None:
    result = exports(name, exporter)
    analysis = analyze(result.path)
    assert analysis.modules[0].total.nodes == len(analysis.nodes) == len(result.provenance.nodes)
    assert all(module.own.nodes <= module.total.nodes for module in analysis.modules)
    assert analysis.file.matches_record
    assert len(json.loads(to_json(analysis))["modules"]) == len(result.provenance.hierarchy.modules)


def test_two_exporters_side_by_side(exports: Exports) -> None:
    a, b = (exports("bert", exporter).path for exporter in EXPORTERS)
    comparison = compare(a, b)
    assert comparison.differences
    assert comparison.only_a == comparison.only_b == ()
    assert all(found.tag_a == found.tag_b for found in comparison.differences)
    assert len(as_text(comparison_tables(comparison)).splitlines()) < 60
    assert compare(a, a).identical
