from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.exports import Exports
from tests.support.queried import KNOWN
from tests.support.small_file import SmallFile

import modelexport as mx
from modelexport.errors import UnknownName, UserError
from modelexport.inspect.query.answer import answer_query


@pytest.mark.parametrize(
    ("query", "near"),
    [
        ("module=layer.0", "layers.0"),
        ("module=layers.*.fcc.**", "layers.*.fc.**"),
        ("op=Add & module=embb", "emb"),
        ("op=Add | !module=embb", "emb"),
        ("op=Add & module!=embb", "emb"),
        ("tag=/Net/Blok.0/**", "/Net/Block.0/**"),
        ("class=linear", "Linear"),
        ("role=attention.qurey", "attention.query"),
        ("op=matmul", "MatMul"),
        ("op=microsoft::Attention", "com.microsoft::Attention"),
        ("evidence=scop", "scope"),
        ("evidence=scope:tt", "scope:t"),
        ("param=layers.*.fc.weigth", "layers.*.fc.weight"),
        ("tensor=val1", "val_1"),
    ],
)
def test_a_name_of_nothing_has_the_nearest_one_in_its_error(query: str, near: str) -> None:
    with pytest.raises(UnknownName) as caught:
        answer_query(query, KNOWN)
    assert caught.value.hint == f"Did you mean {near!r}?"


def test_a_name_that_nothing_is_like_comes_with_some_that_are_known() -> None:
    with pytest.raises(UnknownName, match="Known: Gather, MatMul"):
        answer_query("op=xyz", KNOWN)


@pytest.mark.parametrize(
    "query", ["confidence=fallback", "evidence=fx", "layer=7", "call=9", "module=layers", "param=layers.1.fc.bias"]
)
def test_what_exists_but_has_no_node_is_an_empty_answer(query: str) -> None:
    answer = answer_query(query, KNOWN)
    assert answer.nodes == ()
    assert len(answer.remarks) == 1
    assert query in answer.remarks[0]


def test_remarks_say_what_stood_in_the_way() -> None:
    assert answer_query("module=layers", KNOWN).remarks == (
        "no node matches module=layers itself; module=layers.** is with everything inside of it",
    )
    assert answer_query("op=Gemm & !layer=7 & layer=8", KNOWN).remarks == ("no node matches layer=8",)
    assert answer_query("op=Gemm & op=Add", KNOWN).remarks == ("no node matches all of the query",)
    assert answer_query("op=Gemm", KNOWN).remarks == ()


def test_there_are_only_so_many_remarks() -> None:
    query = " & ".join(f"layer={number}" for number in range(1000, 6000))
    assert len(answer_query(query, KNOWN).remarks) == 10


def test_a_file_without_roles() -> None:
    nodes = {key: replace(entry, attribution=replace(entry.attribution, role="")) for key, entry in KNOWN.nodes.items()}
    with pytest.raises(UserError, match="nothing in this file has a role, so role=mlp cannot be answered"):
        answer_query("role=mlp", replace(KNOWN, nodes=nodes))
    assert answer_query("!role=**", replace(KNOWN, nodes=nodes)).nodes == tuple(nodes.values())


def test_many_names_are_not_all_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def unknown(kind: str, name: str, names: list[str]) -> UnknownName:
        compared.append(len(names))
        return UnknownName(kind, name, names)

    monkeypatch.setattr("modelexport.inspect.query.answer.UnknownName", unknown)
    edges = KNOWN.known_edges()
    many = {f"value_{number}_of_a_large_model": ("e",) for number in range(50_000)}
    found = replace(KNOWN, edges=replace(edges, consumers={**edges.consumers, **many}))
    with pytest.raises(UnknownName, match="Did you mean 'value_123"):
        answer_query("tensor=value_123_of_large_model", found)
    assert compared[0] < 1000


def test_from_python(small: SmallFile, small_path: Path) -> None:
    found = mx.query(small_path, "module=layers.** & op=MatMul")
    assert [entry.key for entry in found] == ["h0", "h1"]
    assert mx.query(str(small_path), "module=layers.** & op=MatMul") == found
    assert mx.query(small.provenance(), "module=layers.** & op=MatMul") == found


def test_the_package_does_not_hide_the_function(small_path: Path) -> None:
    from modelexport.inspect.query import parsing

    assert str(parsing.parse_query("op=Add")) == "op=Add"
    assert mx.query(small_path, "op=Add")


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_the_projections_of_a_real_model(exports: Exports, exporter: str) -> None:
    path = exports("bert", exporter).path
    by_module = mx.query(path, "module=encoder.layer.*.attention.self.{} & op=MatMul".replace("{}", "query"))
    assert [entry.attribution.module for entry in by_module] == [
        f"encoder.layer.{number}.attention.self.query" for number in range(2)
    ]
    # Both exporters transpose the weight and give it a name of their own.
    assert mx.query(path, "param=encoder.layer.*.attention.self.query.weight") == by_module


def test_calls_of_a_real_model(exports: Exports) -> None:
    path = exports("albert", "dynamo").path
    later = mx.query(path, "call=1 & class=Linear")
    assert later
    assert all(owner.index == 1 for entry in later for owner in entry.attribution.owners)


def test_of_names_that_are_equally_near_the_one_that_begins_alike_is_proposed() -> None:
    assert UnknownName("op", "Ad", ["And", "Add", "Cast"]).hint == "Did you mean 'Add'?"
    assert UnknownName("op", "Ad", ["Cast"]).hint == "Known: Cast."


@pytest.mark.parametrize(
    ("name", "near"),
    [("genia", "genai"), ("gen", "genai"), ("transformers.js", "transformersjs"), ("optimun", "optimum")]
    + [(name, "") for name in ("xenova", "tensorrt", "gemma", "ai", "openvino", "g", "")],
)
def test_only_similar_names_are_proposed(name: str, near: str) -> None:
    known = ["genai", "optimum", "transformersjs"]
    hint = UnknownName("target", name, known).hint
    assert hint == (f"Did you mean {near!r}?" if near else "Known: genai, optimum, transformersjs.")
