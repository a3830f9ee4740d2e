"""Structure alone: what users see is scored, and too few networks do not hold."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from measure.anyfile.structure import (
    Score,
    compose_table,
    count_layers,
    list_paths,
    load_nameless,
    match_runs,
    number_layers,
)
from tests.support.nameless_nets import Net

RIGHT = Score("net", "dynamo", {"layers": 4}, {"layers": 4}, 100, 100)
WRONG = replace(RIGHT, layers={"layers": 3})
PLAIN: dict[str, list[str]] = {f"plain {number}": [] for number in range(10)}


def test_thirty_networks_of_each_exporter_hold() -> None:
    other = [replace(RIGHT, exporter="torchscript")] * 30
    table = compose_table([RIGHT] * 27 + [WRONG] * 3 + other, PLAIN)
    assert table.holds
    assert [row[:2] for row in table.rows[-2:]] == [
        ("all, dynamo", "27 of 30 right"),
        ("all, torchscript", "30 of 30 right"),
    ]


@pytest.mark.parametrize(
    ("scores", "invented"),
    [
        ([], PLAIN),
        ([RIGHT] * 29, PLAIN),
        ([RIGHT] * 26 + [WRONG] * 4, PLAIN),
        ([replace(RIGHT, right=91)] * 30, PLAIN),
        ([RIGHT] * 60 + [replace(WRONG, exporter="torchscript")] * 5, PLAIN),
        ([RIGHT] * 60 + [replace(RIGHT, exporter="torchscript")] * 5, PLAIN),
        ([RIGHT] * 30, {**PLAIN, "plain 3": ["layers"]}),
        ([RIGHT] * 30, dict(list(PLAIN.items())[:9])),
    ],
    ids=[
        "none",
        "too few networks",
        "layers miscounted",
        "nodes in other layers",
        "one exporter is worse",
        "one exporter has too few",
        "layers invented",
        "too few plain networks",
    ],
)
def test_what_does_not_hold(scores: list[Score], invented: dict[str, list[str]]) -> None:
    assert not compose_table(scores, invented).holds


def test_what_torch_does_not_export_is_said() -> None:
    assert "xlnet, dynamo: not exported by torch" in compose_table([RIGHT], PLAIN, ["xlnet, dynamo"]).notes


def test_layers_are_those_that_users_see(tmp_path: Path) -> None:
    net = Net()
    value = net.embed()
    ends = [value := net.pre_norm_layer(value) for _ in range(3)]
    path = tmp_path / "net.onnx"
    proto = net.proto(net.linear(value))
    for weight in proto.graph.initializer:
        weight.raw_data = bytes(4 * math.prod(weight.dims))
    path.write_bytes(proto.SerializeToString())
    provenance, names = load_nameless(path)
    layers = number_layers(list_paths(provenance, names))
    assert [layers[end] for end in ends] == [("", number) for number in range(3)]
    assert count_layers(layers.values()) == {"": 3}


def test_numbers_go_on_from_stage_to_stage_and_runs_are_matched_by_their_nodes() -> None:
    paths = {"a": "up.stages.0.layers.1", "b": "up.stages.1.layers.0.mlp", "c": "up.stages.0.layers.0", "d": "stem"}
    layers = number_layers(paths)
    assert layers == {"a": ("up.", 1), "b": ("up.", 2), "c": ("up.", 0)}
    assert match_runs({"a": ("blocks", 1), "b": ("other", 0), "c": ("blocks", 0)}, layers) == {"up.": "blocks"}
