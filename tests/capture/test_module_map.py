"""TorchScript's own module map: read where it is there, done without where it is not."""

from __future__ import annotations

import pytest
import torch
from tests.support import nets
from torch.onnx._internal.torchscript_exporter import utils

from modelexport.attribute.scopes import expected_scope
from modelexport.attribute.strategies import universal
from modelexport.capture.arguments import Exported, ExportRequest
from modelexport.capture.export import export_traced, trace_model
from modelexport.capture.hierarchy import read_scope_names
from modelexport.graph.index import index_model
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.signals import Signals

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def exported() -> tuple[Exported, Hierarchy]:
    run = trace_model(nets.perturbed(nets.Repeated()), X)
    return export_traced(run, "torchscript", ExportRequest()), run.hierarchy


def owners(found: Exported, hierarchy: Hierarchy) -> list[tuple[str, ...]]:
    graph = index_model(found.model.proto)
    claims = universal(graph, hierarchy, Signals(found.scopes)).nodes
    return [tuple(map(str, claims[node.key].owners)) for node in graph.nodes if node.key in claims]


def test_the_map_is_read_while_the_export_runs() -> None:
    found, hierarchy = exported()
    assert dict(found.scopes.parts) == {
        "blk": "blk",
        "blk.fc": "fc",
        "blk.net": "net",
        "blk.net.0": "net.0",
        "blk.net.1": "net.1",
        "blk.kinds": "kinds",
        "blk.kinds.p": "p",
    }
    assert found.notes == ()
    assert ("blk.fc#5",) in owners(found, hierarchy)


def test_paths_give_the_names_that_the_map_gives() -> None:
    """What is computed where there is no map is what the map of this torch says."""
    found, hierarchy = exported()
    for stack in hierarchy.stacks.values():
        assert expected_scope(stack) == expected_scope(stack, found.scopes.parts)


GARBLED: list[object] = [None, [], "map", {}, {"__module": "x"}]


@pytest.mark.parametrize("other", GARBLED)
def test_another_map_is_done_without(monkeypatch: pytest.MonkeyPatch, other: object) -> None:
    sound, hierarchy = exported()
    monkeypatch.setattr(
        "modelexport.capture.hierarchy._map_holder", lambda: type("Trace", (), {"_trace_module_map": other})
    )
    found, _ = exported()
    assert found.scopes.parts == {}
    assert any("module map" in note for note in found.notes)
    assert owners(found, hierarchy) == owners(sound, hierarchy)


def test_a_torch_without_the_map_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelexport.capture.hierarchy._NAME", "_gone")
    found, _ = exported()
    assert found.scopes.parts == {}
    assert any("module map" in note for note in found.notes)


@pytest.mark.parametrize("scope", ["Linear/fc", 7, None])
def test_scopes_of_another_form_are_not_read(monkeypatch: pytest.MonkeyPatch, scope: object) -> None:
    net = nets.Repeated()
    monkeypatch.setattr(torch.jit._trace, "_trace_module_map", dict.fromkeys(net.modules(), scope))
    assert read_scope_names(net) == {}


def test_the_map_has_the_form_that_is_expected() -> None:
    """Fails when torch changes it: then the adapter wants looking at."""
    net = nets.Repeated()
    try:
        utils._setup_trace_module_map(net, False)
        assert read_scope_names(net)["blk.net.0"] == "net.0"
    finally:
        utils._reset_trace_module_map()
