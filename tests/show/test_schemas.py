"""What is published as a schema is what is written."""

from __future__ import annotations

import json
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.building import to_document
from tests.support.packages import packages
from tests.support.profiles import lineages, profiles
from tests.support.small_file import NODES, SmallFile, small_hierarchy
from tests.support.verification import VERIFICATIONS

from modelexport.api.read import analyze
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.package import PackageInfo
from modelexport.record.package_document import is_inside, write_package_document
from modelexport.record.provenance import Attribution, Claim, Confidence, Evidence, EvidenceKind, unattributed
from modelexport.record.results.files import (
    Flattening,
    FlattenResult,
    FoldedFunction,
    Folding,
    FoldResult,
    RelinkResult,
    Unfolded,
)
from modelexport.record.results.profile import Profile
from modelexport.record.results.verification import Verification
from modelexport.show.data.results import to_json

jsonschema = pytest.importorskip("jsonschema")

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
CALLS = st.sampled_from(["", "emb", "layers.0", "layers.0.fc", "layers.1.fc"]).map(ModuleCall)
EVIDENCE = st.builds(Evidence, st.sampled_from(EvidenceKind), TEXT, TEXT)
SURE = st.sampled_from([level for level in Confidence if level is not Confidence.NONE])
CLAIMS = st.builds(Claim, st.lists(CALLS, max_size=2).map(tuple), SURE, st.lists(EVIDENCE, max_size=2).map(tuple), TEXT)


@st.composite
def attributions(draw: st.DrawFn) -> Attribution:
    owners = tuple(draw(st.lists(CALLS, max_size=3, unique=True)))
    if not owners:
        return unattributed(draw(TEXT))
    return Attribution(
        owners,
        small_hierarchy().common_ancestor(owners),
        draw(SURE),
        tuple(draw(st.lists(EVIDENCE, max_size=3))),
        lost=tuple(draw(st.lists(CLAIMS, max_size=1))),
        role=draw(st.sampled_from(["", "norm", "attention.query"])),
        layer_id=draw(st.none() | st.integers(0, 3)),
    )


RECIPES = st.builds(
    SmallFile,
    owners=st.dictionaries(st.sampled_from([key for key, *_ in NODES]), attributions()),
    names=st.dictionaries(st.sampled_from([key for key, *_ in NODES]), TEXT),
)


SCHEMAS = sorted(
    entry.name.removesuffix(".schema.json") for entry in (resources.files("modelexport.record") / "schema").iterdir()
)


def schema(name: str) -> dict[str, Any]:
    text = (resources.files("modelexport.record") / "schema" / f"{name}.schema.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_valid(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(name))


@settings(max_examples=30, deadline=None)
@given(RECIPES, st.sampled_from([None, "Block", "nothing"]))
def test_analyses_conform(recipe: SmallFile, filter_tag: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        analysis = analyze(recipe.write(Path(folder) / "a.onnx"), filter_tag)
    jsonschema.validate(json.loads(to_json(analysis)), schema("analysis"))


def test_analyses_written_before_there_were_roles_conform(small_path: Path) -> None:
    document = json.loads(to_json(analyze(small_path)))
    del document["roles"]
    for node in document["nodes"]:
        del node["role"], node["layer"]
    jsonschema.validate(document, schema("analysis"))


@settings(max_examples=30, deadline=None)
@given(RECIPES)
def test_records_conform(recipe: SmallFile) -> None:
    jsonschema.validate(json.loads(json.dumps(to_document(recipe.provenance()))), schema("hierarchy"))


@given(VERIFICATIONS)
def test_verifications_conform(found: Verification) -> None:
    text = to_json(found)
    assert text.isascii()
    jsonschema.validate(json.loads(text), schema("verification"))


@given(lineages())
def test_lineages_conform(found: RelinkResult) -> None:
    text = to_json(found)
    assert text.isascii()
    jsonschema.validate(json.loads(text), schema("lineage"))


@given(profiles())
def test_profiles_conform(found: Profile) -> None:
    text = to_json(found)
    assert text.isascii()
    jsonschema.validate(json.loads(text), schema("profile"))


_FOLDINGS = st.builds(
    Folding,
    st.integers(0, 99),
    st.integers(0, 99),
    st.lists(
        st.builds(FoldedFunction, st.text(), st.text(), st.integers(1, 9), st.integers(1, 9), st.tuples(st.text())),
        max_size=2,
    ).map(tuple),
    st.lists(st.builds(Unfolded, st.text(), st.integers(1, 9), st.text()), max_size=2).map(tuple),
    st.dictionaries(st.text(), st.integers(1, 9), max_size=2),
)
_FLATTENINGS = st.builds(
    Flattening,
    st.integers(0, 99),
    st.integers(0, 99),
    st.booleans(),
    st.lists(st.text(), max_size=2).map(tuple),
    st.dictionaries(st.text(), st.text(), max_size=2),
    st.text(),
)


@given(_FOLDINGS, _FLATTENINGS)
def test_foldings_conform(folding: Folding, flattening: Flattening) -> None:
    record = SmallFile().provenance()
    path = Path("a.onnx")
    for result in (FoldResult(path, (path,), record, folding), FlattenResult(path, (), None, flattening)):
        text = to_json(result)
        assert text.isascii()
        jsonschema.validate(json.loads(text), schema("folding"))


@given(packages())
def test_descriptions_of_packages_conform(info: PackageInfo) -> None:
    jsonschema.validate(json.loads(write_package_document(info)), schema("package"))


@pytest.mark.parametrize(
    "path", ["a", "onnx/a.onnx", "..a", "../a", "a/../b", "./a", "a//b", "a/", "/a", "C:a", "a\\b"]
)
def test_the_schema_of_packages_knows_the_same_paths(path: str) -> None:
    rule = schema("package")["$defs"]["path"]
    assert jsonschema.Draft202012Validator(rule).is_valid(path) is is_inside(path)
