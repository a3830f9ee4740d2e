"""A package in Python: its files, its components, and one module tree over all of them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.packages import ABSENT, DECODER, PackageRecipe, package_path

import modelexport as mx
from modelexport.api import keywords

__all__ = ["package_path"]


def test_a_component_answers_for_its_nodes(package_path: Path) -> None:
    package = mx.open_package(package_path)
    assert [*package] == ["encoder", "decoder"]
    assert package["decoder"].attribution("node_k1").module == "decoder.layers.1.k"
    assert package["decoder"].path == package_path / "decoder_model.onnx"
    assert package["encoder"].provenance.boundary("encoder").leaves == ("e1",)
    assert package["decoder"].info.cache[0].present == "present.0.key"


def test_all_files_are_listed(package_path: Path) -> None:
    files = mx.open_package(str(package_path)).files
    assert {*files} == {path for path in package_path.rglob("*") if path.is_file()}


def test_an_unknown_component_is_answered_with_the_nearest(package_path: Path) -> None:
    with pytest.raises(mx.UserError, match="unknown component 'decodr'") as caught:
        mx.open_package(package_path)["decodr"]
    assert "'decoder'" in caught.value.hint


def test_a_module_is_known_in_every_component_that_has_it(package_path: Path) -> None:
    provenance = mx.open_package(package_path).provenance
    assert provenance.components_of("bridge") == ("encoder", "decoder")
    assert provenance.components_of("decoder") == ("decoder",)
    assert provenance.components_of("") == ("encoder", "decoder")
    assert provenance.components_of("vision") == ()
    assert provenance.absent == (ABSENT,)
    assert "decoder.layers.1.k" in provenance.hierarchy.modules
    assert provenance.tags_of("bridge") == dict.fromkeys(("encoder", "decoder"), "/Talker")
    assert provenance.attribution("encoder", "node_e0").module == "encoder.fc"
    with pytest.raises(mx.UserError, match="unknown module"):
        provenance.components_of("nothing")
    with pytest.raises(mx.UserError, match="unknown component"):
        provenance.attribution("nothing", "node_e0")


def test_modules_of_one_component_alone_are_in_the_tree(tmp_path: Path) -> None:
    # A record may hold the modules of its own file only.
    record = DECODER.provenance()
    modules = [module for path, module in record.hierarchy.modules.items() if not path.startswith("encoder")]
    recipe = PackageRecipe().write(tmp_path / "talker")
    provenance = mx.open_package(recipe).provenance
    narrowed = replace(record, hierarchy=replace(record.hierarchy, modules={item.path: item for item in modules}))
    merged = replace(provenance, components={"decoder": narrowed, "encoder": provenance.components["encoder"]})
    assert {*merged.hierarchy.modules} == {*provenance.hierarchy.modules}


READING: dict[str, Callable[[Any], object]] = {
    "load": mx.load,
    "analyze": mx.analyze,
    "query": lambda source: mx.query(source, "op=MatMul"),
    "validate": mx.validate,
    "cost": mx.cost,
    "compare": lambda source: mx.compare(source, source),
    "diff": lambda source: mx.diff(source, source).components["decoder"].identical,
    "select": lambda source: mx.select(source, "op=Gather"),
}


@pytest.mark.parametrize("verb", READING)
def test_a_folder_and_an_opened_package_are_the_same_to_a_verb(verb: str, package_path: Path) -> None:
    ask = READING[verb]
    answers = [ask(source) for source in (mx.open_package(package_path), package_path, str(package_path))]
    assert repr(answers[0]) == repr(answers[1]) == repr(answers[2])


def test_verbs_that_write_take_the_path_of_a_folder(package_path: Path, tmp_path: Path) -> None:
    stripped: Any = mx.strip(str(package_path), tmp_path / "plain")
    assert stripped.package["decoder"].name == "decoder"
    assert [*mx.convert(package_path, tmp_path / "dot", "dot").files] == ["encoder", "decoder"]
    assert mx.view(str(package_path), tmp_path / "page.html").path.is_file()
    made: Any = mx.quantize(str(package_path), tmp_path / "int8", components=["decoder"])
    assert (made.folder, made.copied) == (tmp_path / "int8", ("encoder",))
    assert mx.run_tool(mx.open_package(package_path), "onnxslim", tmp_path / "slim").ok
    linked: Any = mx.relink(tmp_path / "slim", tmp_path / "linked", before=mx.open_package(package_path))
    assert [*linked.components] == ["encoder", "decoder"]
    assert os.fspath(mx.open_package(tmp_path / "linked")) == str(tmp_path / "linked")


def test_a_component_of_a_file_is_refused(package_path: Path, tmp_path: Path) -> None:
    file = package_path / "decoder_model.onnx"
    for change in (
        lambda: mx.quantize(file, tmp_path / "out.onnx", components=["decoder"]),
        lambda: mx.run_tool(file, "onnxslim", tmp_path / "out.onnx", components=["decoder"]),
        lambda: mx.relink(file, tmp_path / "out.onnx", components=["decoder"]),
    ):
        with pytest.raises(mx.UserError, match="is not a package"):
            change()


KEYWORDS = {
    "export": (keywords.ExportKeywords, {"model", "output", "target"}),
    "attach": (keywords.AttachKeywords, {"file", "model", "output"}),
    "quantize": (keywords.QuantizeKeywords, {"file", "output"}),
    "run_tool": (keywords.RunToolKeywords, {"file", "tool", "output"}),
    "relink": (keywords.RelinkKeywords, {"after", "output"}),
    "verify": (keywords.VerifyKeywords, {"file", "model", "against"}),
    "profile": (keywords.ProfileKeywords, {"file"}),
}


@pytest.mark.parametrize("verb", KEYWORDS)
def test_type_checkers_know_every_keyword(verb: str) -> None:
    """As the signature has them: a keyword that an overload does not have would be refused, and one too many pass."""
    typed, others = KEYWORDS[verb]
    parameters = inspect.signature(getattr(mx, verb)).parameters
    wanted = {name: item.annotation for name, item in parameters.items() if name not in others}
    assert {name: str(item.__forward_arg__) for name, item in typed.__annotations__.items()} == wanted
