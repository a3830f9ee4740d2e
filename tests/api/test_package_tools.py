"""Tools on packages: every component goes through the tool, and what comes out is a package of the same consumer."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from tests.support.packages import PackageRecipe, folder_content, package_path

import modelexport as mx
from modelexport.api.package_tools import (
    PackageTarget,
    ToolOptions,
    change_package,
    find_number_type,
    run_on_package,
)
from modelexport.api.quantize import quantize
from modelexport.api.relink import relink_package
from modelexport.api.run_tool import list_tools, run_tool
from modelexport.errors import ToolFailed, UnknownName, UserError
from modelexport.graph.file.package import find_changed_files, write_package
from modelexport.graph.file.reading import open_model
from modelexport.graph.file.writing import save_model
from modelexport.record.results.files import QuantizeResult, RelinkResult

__all__ = ["package_path"]


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]


def to_int4(file: Path, path: Path) -> QuantizeResult:
    return quantize(file, path, weight_type="int4", block_size=16)


def test_every_component_is_quantized_and_the_rest_stays(package_path: Path, tmp_path: Path) -> None:
    before, package = folder_content(package_path), mx.open_package(package_path)
    change = change_package(package, PackageTarget(tmp_path / "int4"), to_int4)
    assert change.ok
    assert change.folder == tmp_path / "int4"
    assert [*change.components] == ["encoder", "decoder"]
    made = mx.open_package(tmp_path / "int4")
    for name in made:
        assert "MatMulNBits" in operators(made[name].path)
        assert change.components[name].relinked.path == made[name].path
        assert all(path.is_file() and path.parent == made.folder for path in change.components[name].relinked.files)
    assert made["decoder"].attribution("node_k1_Q4").module == "decoder.layers.1.k"
    assert folder_content(made.folder)["config.json"] == before["config.json"]
    assert made.info.components == package.info.components
    assert (made.info.links, made.info.absent, made.info.target) == (
        package.info.links,
        package.info.absent,
        package.info.target,
    )
    assert not [*find_changed_files(made.folder, made.info)]
    assert mx.validate(made).ok
    assert folder_content(package_path) == before


def test_others_than_the_chosen_components_are_copied(package_path: Path, tmp_path: Path) -> None:
    package = mx.open_package(package_path)
    change = change_package(package, PackageTarget(tmp_path / "out", ("decoder",)), to_int4)
    assert change.copied == ("encoder",)
    assert [*change.components] == ["decoder"]
    contents = [folder_content(folder) for folder in (package_path, tmp_path / "out")]
    for name in ("encoder_model.onnx", "encoder_model.hierarchy.json"):
        assert contents[0][name] == contents[1][name]
    assert contents[0]["decoder_model.onnx"] != contents[1]["decoder_model.onnx"]
    with pytest.raises(UnknownName, match="decodr"):
        change_package(package, PackageTarget(tmp_path / "more", ("decodr",)), to_int4)
    assert not (tmp_path / "more").exists()


def test_nothing_is_written_if_one_component_fails(package_path: Path, tmp_path: Path) -> None:
    package = mx.open_package(package_path)

    def fail(file: Path, path: Path) -> RelinkResult:
        if "decoder" in file.name:
            raise ToolFailed("it broke", "")
        return run_tool(file, "onnxslim", path)

    with pytest.raises(ToolFailed):
        change_package(package, PackageTarget(tmp_path / "out"), fail)
    assert {path.name for path in tmp_path.iterdir()} == {"talker"}


def test_queries_and_operators_are_about_the_components_that_have_them(package_path: Path, tmp_path: Path) -> None:
    package = mx.open_package(package_path)

    def run(name: str, options: ToolOptions) -> mx.Package:
        def work(file: Path, path: Path, told: ToolOptions) -> QuantizeResult:
            return quantize(
                file, path, weight_type="int4", exclude=told.exclude, include=told.include, op_types=told.op_types
            )

        run_on_package(package, PackageTarget(tmp_path / name), options, work)
        return mx.open_package(tmp_path / name)

    excluded = run("excluded", ToolOptions(exclude=("module=encoder",)))
    assert operators(excluded["encoder"].path).count("MatMul") == 1
    assert operators(excluded["decoder"].path).count("MatMul") == 0
    included = run("included", ToolOptions(include=("module=head",)))
    assert operators(included["encoder"].path) == operators(package["encoder"].path)
    assert operators(included["decoder"].path).count("MatMulNBits") == 1
    chosen = run("chosen", ToolOptions(op_types=("Gather", "MatMul")))
    assert "GatherBlockQuantized" in operators(chosen["decoder"].path)
    for options in (
        ToolOptions(exclude=("module=nowhere",)),
        ToolOptions(op_types=("Conv",)),
        ToolOptions(input=("z=1",)),
    ):
        with pytest.raises(UserError):
            run("none", options)
    assert not (tmp_path / "none").exists()


def make_for_transformersjs(folder: Path, *, spread: bool = False) -> mx.Package:
    """The same package as transformers.js has it; `spread`: the decoder with its weights beside it."""
    (folder / "onnx").mkdir()
    for path in [*folder.glob("*_model.*")]:
        path.rename(folder / "onnx" / path.name)
    data: dict[str, tuple[str, ...]] = {}
    if spread:
        model = folder / "onnx" / "decoder_model.onnx"
        save_model(open_model(model), model, external_data=True, threshold=16)
        data = {"decoder": ("onnx/decoder_model.onnx.data",)}
        config = {"model_type": "x", "transformers.js_config": {"use_external_data_format": {"decoder_model.onnx": 1}}}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")

    info = PackageRecipe().info()
    components = tuple(
        replace(item, file=f"onnx/{item.file}", data=data.get(item.name, ())) for item in info.components
    )
    (folder / "modelexport.json").unlink()
    write_package(folder, replace(info, components=components, target="transformersjs"))
    return mx.open_package(folder)


def test_transformersjs_finds_the_type_in_the_name(package_path: Path, tmp_path: Path) -> None:
    package = make_for_transformersjs(package_path)
    change_package(package, PackageTarget(tmp_path / "q4", ("decoder",), "int4"), to_int4)
    made = mx.open_package(tmp_path / "q4")
    assert [component.file for component in made.info.components] == [
        "onnx/encoder_model.onnx",
        "onnx/decoder_model_q4.onnx",
    ]
    assert (made.folder / "onnx" / "decoder_model_q4.hierarchy.json").is_file()
    assert mx.validate(made).ok


def test_transformersjs_finds_data_by_its_name_and_in_the_configuration(package_path: Path, tmp_path: Path) -> None:
    package = make_for_transformersjs(package_path, spread=True)
    external = {}

    def put_outside(file: Path, path: Path) -> QuantizeResult:
        result = quantize(file, path)
        save_model(open_model(path), path, external_data=True, threshold=16)
        return result

    for name, change in (("spread", put_outside), ("whole", quantize)):
        change_package(package, PackageTarget(tmp_path / name, ("decoder",), "int8"), change)
        made = mx.open_package(tmp_path / name)
        external[name] = made["decoder"].info.data
        config = json.loads((made.folder / "config.json").read_text(encoding="utf-8"))
        listed = {"use_external_data_format": {"decoder_model_int8.onnx": 1}}
        assert config == {"model_type": "x"} | ({"transformers.js_config": listed} if name == "spread" else {})
        onnx.checker.check_model(str(made["decoder"].path))
        assert mx.validate(made).ok
    assert external == {"spread": ("onnx/decoder_model_int8.onnx_data",), "whole": ()}


def test_a_chain_of_tools_gives_the_type_of_its_last_converter() -> None:
    assert find_number_type("onnxslim+int4") == "int4"
    assert find_number_type("fp16+ort:all") == "float16"
    assert find_number_type("ort:basic") == ""


def test_a_folder_that_tools_made_is_relinked_to_the_package(package_path: Path, tmp_path: Path) -> None:
    """Also if it has no description, or that of the files before."""
    after = tmp_path / "after"
    shutil.copytree(package_path, after)
    for name in ("encoder_model", "decoder_model"):
        run_tool(package_path / f"{name}.onnx", "onnxslim", tmp_path / "made.onnx")
        model = onnx.load(tmp_path / "made.onnx")
        for node in model.graph.node:
            node.name = ""
            del node.metadata_props[:]
        onnx.save(model, after / f"{name}.onnx")
        (after / f"{name}.hierarchy.json").unlink()
    (after / "notes.txt").write_text("of the tool", encoding="utf-8")
    before = folder_content(after)
    for number, described in enumerate((True, False)):
        if not described:
            (after / "modelexport.json").unlink()
        target = PackageTarget(tmp_path / f"tagged{number}")
        change = relink_package(after, target, before=package_path)
        assert change.ok
        made = mx.open_package(target.output)
        assert made["decoder"].attribution("h1").module == "decoder.layers.1"
        assert folder_content(made.folder)["notes.txt"] == b"of the tool"
        assert mx.validate(made).ok
    assert folder_content(after).items() <= before.items()
    traced = relink_package(after, before=package_path)
    assert traced.folder is None
    assert traced.ok
    with pytest.raises(mx.ModelExportError, match=r"without modelexport\.json"):
        relink_package(after)


def test_a_component_of_another_model_is_written_nowhere(package_path: Path, tmp_path: Path) -> None:
    after = PackageRecipe().write(tmp_path / "after")
    shutil.copyfile(after / "encoder_model.onnx", after / "decoder_model.onnx")
    change = relink_package(after, PackageTarget(tmp_path / "out"), before=package_path)
    assert not change.ok
    assert change.folder is None
    assert not (tmp_path / "out").exists()
    (after / "decoder_model.onnx").unlink()
    with pytest.raises(mx.ModelExportError, match=r"no decoder_model\.onnx, the file of decoder"):
        relink_package(after, PackageTarget(tmp_path / "out"), before=package_path)


def test_tools_are_listed_with_what_they_fuse() -> None:
    tools = {tool.call: tool for tool in list_tools()}
    assert tools["ort:all|extended|basic"].installed
    assert "SkipSimplifiedLayerNormalization" in tools["ort_fusions"].makes
    assert tools["int4"].makes == ("MatMulNBits",)
