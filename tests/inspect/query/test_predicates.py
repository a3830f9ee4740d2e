from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import model, node, provenance, provenances
from tests.support.queried import EXPRESSIONS, HIERARCHY, KNOWN, TENSORS, known

from modelexport.errors import UserError
from modelexport.graph.index import edges_of, index_model
from modelexport.inspect.query.answer import select
from modelexport.inspect.query.expression import (
    And,
    Expression,
    Glob,
    Not,
    Operator,
    Or,
    QueryField,
    Term,
    include_submodules,
)
from modelexport.inspect.query.parsing import parse_query
from modelexport.record.provenance import Confidence, Provenance
from modelexport.record.tags import TagPolicy


def keys(query: str, found: Provenance = KNOWN) -> list[str]:
    return [entry.key for entry in select(parse_query(query), found)]


BRANCH = "c|then_branch|t"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("module=layers.0.fc", ["h", BRANCH]),
        ("module=layers.0", ["c"]),
        ("module=layers.0.**", ["h", "c", BRANCH]),
        ("module=layers.*", ["c"]),
        ("module=**.fc", ["h", BRANCH, "i", "j"]),
        ("module=layers.1.fc#1", ["j"]),
        ("module=**#1", ["j"]),
        ("module=layers.1.fc#0", [BRANCH, "i"]),
        ("module=head.tied", ["e"]),
        ('module=""', ["y"]),
        ("module=**", ["e", "h", "c", BRANCH, "i", "j", "y"]),
        ("!module=**", ["u"]),
        ("tag=/Net/Block.0", ["h", "c", BRANCH]),
        ("tag=/Net", [BRANCH, "y"]),
        ("tag=/Net/**/Emb*", ["e"]),
        ("!tag=**", ["u"]),
        ("class=Linear", ["h", BRANCH, "i", "j"]),
        ("class=*B*", ["c"]),
        ("role=attention.*", ["h", "i"]),
        ("role=mlp", ["j"]),
        ("role=mlp.**", ["j"]),
        ("role=**", ["e", "h", "i", "j"]),
        ("layer=1", ["i", "j"]),
        ("layer=0..1", ["h", "i", "j"]),
        ("layer<1", ["h"]),
        ("layer>=1", ["i", "j"]),
        ("layer!=1", ["e", "h", "c", BRANCH, "u", "y"]),
        ("op=Gemm", ["i", "j"]),
        ("op=*M*", ["h", BRANCH]),
        ("op=com.microsoft::Attention", ["u"]),
        ("op=*::Attention", ["u"]),
        ("op=ai.onnx::*m*", ["i", "j"]),
        ("confidence=inferred", ["i"]),
        ("confidence<=inferred", ["i", "u"]),
        ("confidence>inferred & op=MatMul", ["h", BRANCH]),
        ("confidence=none", ["u"]),
        ("confidence!=exact", ["i", "u"]),
        ("evidence=lineage", ["i", "j"]),
        ("relation=fused", ["j"]),
        ("relation=f*", ["j"]),
        ("relation!=kept & !module=**", ["u"]),
        ("relation=kept & op=Gemm", ["i"]),
        ("evidence='lineage:closed early'", ["i"]),
        ("evidence=*:t & op=Gemm", ["i", "j"]),
        ("call=1", ["j"]),
        ("call>0", ["j"]),
        ("call=0 & op=Gemm", ["i"]),
        ("param=emb.weight", ["e"]),
        ("param=head.tied.weight", ["e"]),
        ("param=layers.*.fc.weight", ["h", "i", "j"]),
        ("param=layers.1.fc.weight", ["i", "j"]),
        ("param=val_2", ["j"]),
        ("param='c|then_branch|deep'", [BRANCH]),
        ("tensor=e", ["e", "h", "y"]),
        ("tensor=h", ["h", BRANCH]),
        ("tensor=*then_branch*t", ["c", BRANCH]),
        ("op=Gemm & (layer=0 | call=1)", ["j"]),
        ("!(op=Gemm | op=MatMul) & module=layers.**", ["c"]),
    ],
)
def test_fields(query: str, expected: list[str]) -> None:
    assert keys(query) == expected


def test_a_stand_in_must_be_the_only_one() -> None:
    fc = HIERARCHY.modules["layers.1.fc"]
    alike = replace(fc, parameters=(TENSORS[0], replace(TENSORS[0], name="other")))
    modules = {**HIERARCHY.modules, "layers.1.fc": alike}
    found = replace(KNOWN, hierarchy=replace(HIERARCHY, modules=modules))
    assert keys("param=layers.1.fc.weight", found) == []
    edges = found.known_edges()
    named = replace(edges, initializers={**edges.initializers, "layers.1.fc.other": 6})
    assert keys("param=layers.1.fc.weight", replace(found, edges=named)) == ["i", "j"]


def test_a_tied_parameter_is_found_under_both_names() -> None:
    tied = replace(TENSORS[0], tied=("layers.0.fc.weight",))
    modules = {**HIERARCHY.modules, "layers.1.fc": replace(HIERARCHY.modules["layers.1.fc"], parameters=(tied,))}
    found = replace(KNOWN, hierarchy=replace(HIERARCHY, modules=modules))
    assert keys("param=layers.0.fc.weight", found) == ["h", "i", "j"]


def test_a_copy_of_a_weight_is_the_parameter_that_it_is_named_after() -> None:
    proto = model(
        node("Identity", "emb.weight", "layers.0.fc.weight"),
        node("MatMul", "x layers.0.fc.weight", "y"),
        weights=["emb.weight"],
    )
    found = replace(provenance(proto, HIERARCHY, {}), edges=edges_of(index_model(proto)))
    assert keys("param=layers.0.fc.weight", found) == ["y"]


def test_a_module_without_a_tag_matches_no_tag() -> None:
    hidden = replace(KNOWN, policy=TagPolicy(drop=("", "Net", "Block", "Embedding")))
    assert keys("tag=**", hidden) == []


@pytest.mark.parametrize("query", ["param=**", "tensor=e", "op=ai.onnx::Gemm"])
def test_a_record_alone_knows_no_tensors(query: str) -> None:
    with pytest.raises(UserError, match=r"Load the \.onnx file"):
        keys(query, replace(KNOWN, edges=None))


def test_a_record_alone_answers_everything_else() -> None:
    assert keys("module=layers.0.** & op=MatMul", replace(KNOWN, edges=None)) == ["h", BRANCH]


WITHOUT_EDGES = EXPRESSIONS.filter(
    lambda expression: not any(word in str(expression) for word in ("param", "tensor", "::"))
)


@given(provenances(), WITHOUT_EDGES, WITHOUT_EDGES)
def test_and_or_not_are_those_of_sets(found: Provenance, left: Expression, right: Expression) -> None:
    a, b = set(select(left, found)), set(select(right, found))
    assert set(select(And((left, right)), found)) == a & b
    assert set(select(Or((left, right)), found)) == a | b
    assert set(select(Not(left), found)) == set(found.nodes.values()) - a


@given(provenances(), st.sampled_from(Confidence))
def test_comparisons_part_the_nodes(found: Provenance, level: Confidence) -> None:
    parts = [
        set(select(Term(QueryField.CONFIDENCE, sign, level), found))
        for sign in (Operator.LESS, Operator.IS, Operator.MORE)
    ]
    assert sum(map(len, parts)) == len(found.nodes)
    assert set.union(*parts) == set(found.nodes.values())


@given(provenances())
def test_a_module_finds_exactly_what_it_owns(found: Provenance) -> None:
    for path in found.hierarchy.modules:
        term = Term(QueryField.MODULE, Operator.IS, Glob(path.replace("\\", "\\\\").replace("*", "\\*")))
        owned = [
            entry
            for entry in found.nodes.values()
            if any(found.hierarchy.canonical.get(owner.path) == path for owner in entry.attribution.owners)
        ]
        selected = set(select(term, found))
        assert set(owned) <= selected
        assert set(owned) == selected or "#" in path  # where the path may also be read as a call


def test_within_is_the_class_of_any_module_around() -> None:
    found = known()
    assert keys("within=Block", found) == keys("module=layers.0.** | module=layers.1.**", found)
    assert keys("within=Linear", found) == keys("class=Linear", found)
    assert keys("within=Net", found) == keys("module=**", found)
    assert "c" in keys("within=Block & class!=Linear", found)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("class=Block", "within=Block"),
        ("module=layers.0", "module=layers.0.**"),
        ("module=layers.* & op=Gemm", "module=layers.*.** & op=Gemm"),
        ("!(class=Linear | module!=layers.1)", "!(within=Linear | !module=layers.1.**)"),
        ('module=""', 'module=""'),
        ("module=layers.1.fc#1", "module=layers.1.fc#1"),
        ("module=**", "module=**"),
    ],
)
def test_whole_modules(text: str, same: str) -> None:
    assert str(include_submodules(parse_query(text))) == str(parse_query(same))
