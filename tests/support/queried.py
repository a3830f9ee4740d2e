"""A record with a node of each kind to put queries to, and queries at random."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from tests.support.building import attribution, body, model, module, node, provenance, run, weight

from modelexport.graph.index import edges_of, index_model
from modelexport.inspect.query.expression import (
    NUMBERS,
    ORDERED,
    And,
    Expression,
    Glob,
    Not,
    Operator,
    Or,
    QueryField,
    Spans,
    Term,
)
from modelexport.record.hierarchy import Hierarchy, TensorInfo
from modelexport.record.provenance import Confidence, Evidence, EvidenceKind, Provenance

EQUALITY = (Operator.IS, Operator.IS_NOT)
# In a pattern a backslash stands before a star or a backslash and nowhere else.
PATTERNS = st.lists(st.sampled_from([*"ab.*/#:&|!()=<>\"' \n層", r"\*", r"\\"]), max_size=6).map("".join)
NUMBER = st.integers(0, 99)
SPANS = st.lists(st.tuples(NUMBER, NUMBER).map(lambda ends: (min(ends), max(ends))), min_size=1, max_size=3).map(
    lambda parts: Spans(tuple(parts))
)
TERMS = st.one_of(
    st.builds(Term, st.sampled_from(sorted(set(QueryField) - ORDERED)), st.sampled_from(EQUALITY), PATTERNS.map(Glob)),
    st.builds(Term, st.sampled_from(sorted(NUMBERS)), st.sampled_from(EQUALITY), SPANS),
    st.builds(
        Term,
        st.sampled_from(sorted(NUMBERS)),
        st.sampled_from(Operator),
        NUMBER.map(lambda number: Spans(((number, number),))),
    ),
    st.builds(Term, st.just(QueryField.CONFIDENCE), st.sampled_from(Operator), st.sampled_from(Confidence)),
)


def _joined(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    parts = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(st.builds(Not, inner), st.builds(And, parts), st.builds(Or, parts))


EXPRESSIONS: st.SearchStrategy[Expression] = st.recursive(TERMS, _joined, max_leaves=8)


TENSORS = (TensorInfo("weight", (2, 3), "float32", 24), TensorInfo("bias", (3,), "float32", 12))
HIERARCHY = Hierarchy.of(
    [
        module("", "Net"),
        module("emb", "Embedding", aliases=("head.tied",)),
        module("layers", "ModuleList"),
        module("layers.0", "Block"),
        module("layers.0.fc", "Linear"),
        module("layers.1", "Block"),
        replace(module("layers.1.fc", "Linear"), parameters=TENSORS),
    ],
    run("", "emb", "layers.0", "layers.0.fc", "layers.1", "layers.1.fc", "layers.1.fc"),
)
OWNERS = {
    "e": ("emb",),
    "h": ("layers.0.fc",),
    "c": ("layers.0",),
    "c|then_branch|t": ("layers.0.fc", "layers.1.fc"),
    "i": ("layers.1.fc",),
    "j": ("layers.1.fc#1",),
    "y": ("",),
}
ROLES = {"e": "embedding", "h": "attention.query", "i": "attention.value", "j": "mlp"}
LAYERS = {"h": 0, "i": 1, "j": 1}


def known() -> Provenance:
    """A value of each kind; `u` is made by a node that nobody knows."""
    branch = body(node("MatMul", "h deep", "t"), outputs="t", weights=[weight("deep", 1)])
    proto = model(
        node("Gather", "emb.weight ids", "e"),
        node("MatMul", "e layers.0.fc.weight", "h"),
        node("If", "yes", "c", then_branch=branch),
        node("Gemm", "c val_1", "i", "named"),
        node("Gemm", "i val_1 val_2", "j"),
        node("Attention", "j", "u", domain="com.microsoft"),
        node("Add", "u e", "y"),
        inputs="ids yes",
        weights=["emb.weight", "layers.0.fc.weight", weight("val_1", *range(6)), weight("val_2", 1)],
    )
    graph = index_model(proto)
    found = provenance(proto, HIERARCHY, OWNERS)
    nodes = {
        key: replace(
            entry,
            attribution=replace(entry.attribution, role=ROLES.get(key, ""), layer_id=LAYERS.get(key)),
        )
        for key, entry in found.nodes.items()
    }
    sure = nodes["i"].attribution
    evidence = (*sure.evidence, Evidence(EvidenceKind.LINEAGE, "closed early"))
    nodes["i"] = replace(nodes["i"], attribution=replace(sure, confidence=Confidence.INFERRED, evidence=evidence))
    joined = (*nodes["j"].attribution.evidence, Evidence(EvidenceKind.LINEAGE, "ort:all", "fused from 2"))
    nodes["j"] = replace(nodes["j"], attribution=replace(nodes["j"].attribution, evidence=joined))
    weights = {
        "emb.weight": attribution(HIERARCHY, "emb"),
        "layers.0.fc.weight": attribution(HIERARCHY, "layers.0.fc"),
        "val_1": attribution(HIERARCHY, "layers.1.fc"),
        "val_2": attribution(HIERARCHY, "layers.1.fc"),
        "c|then_branch|deep": attribution(HIERARCHY, "layers.0.fc"),
    }
    return replace(found, nodes=nodes, initializers=weights, edges=edges_of(graph))


KNOWN = known()
