"""A package from a package, and folders of files from one: complete or not at all, and what is read stays as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.support.packages import PackageRecipe, edit_description, folder_content, package_path

import modelexport as mx
from modelexport.api.package_writing import rewrite_package
from modelexport.graph.file.external import set_external
from modelexport.graph.file.package import find_changed_files, read_description, write_package

__all__ = ["package_path"]


def test_a_stripped_package_is_a_package(package_path: Path, tmp_path: Path) -> None:
    before = folder_content(package_path)
    result = mx.strip(mx.open_package(package_path), tmp_path / "plain")
    package = result.package
    assert result.components["encoder"].removed > 0
    assert {*folder_content(package.folder)} == {
        "modelexport.json",
        "config.json",
        "encoder_model.onnx",
        "decoder_model.onnx",
    }
    assert not package["decoder"].file.is_recorded
    assert package.info.components == mx.open_package(package_path).info.components
    assert package.info.absent == mx.open_package(package_path).info.absent
    assert not [*find_changed_files(package.folder, package.info)]
    assert mx.validate(package).ok
    assert folder_content(package_path) == before


def test_keys_that_are_kept_stay_in_all_files(package_path: Path, tmp_path: Path) -> None:
    package = mx.strip(mx.open_package(package_path), tmp_path / "plain", keep=["record"]).package
    assert package["decoder"].attribution("node_k1").module == "decoder.layers.1.k"
    with pytest.raises(mx.UserError, match="no key 'nothing'"):
        mx.strip(mx.open_package(package_path), tmp_path / "other", keep=["nothing"])
    assert not (tmp_path / "other").exists()


def share_weights(folder: Path) -> None:
    """Weights of both files in one data file, as packages have them whose components share weights."""
    (folder / "weights").mkdir()
    places: dict[str, tuple[int, int]] = {}
    data = b""
    for name in ("encoder_model.onnx", "decoder_model.onnx"):
        model = onnx.load(folder / name)
        for tensor in model.graph.initializer:
            if tensor.name not in places:
                places[tensor.name] = len(data), len(tensor.raw_data)
                data += tensor.raw_data
            set_external(tensor, "weights/all.data", *places[tensor.name])
        (folder / name).write_bytes(model.SerializeToString())
    (folder / "weights" / "all.data").write_bytes(data)
    (folder / "modelexport.json").unlink()
    info = PackageRecipe().info()
    components = tuple(replace(component, data=("weights/all.data",)) for component in info.components)
    write_package(folder, replace(info, components=components))


def test_weights_that_files_share_stay_one_file(package_path: Path, tmp_path: Path) -> None:
    share_weights(package_path)
    package = mx.strip(mx.open_package(package_path), tmp_path / "plain").package
    assert [component.info.data for component in package.components.values()] == [("weights/all.data",)] * 2
    content = folder_content(package.folder)
    assert content["weights/all.data"] == folder_content(package_path)["weights/all.data"]
    assert sum(name.endswith(".data") for name in content) == 1
    onnx.checker.check_model(str(package["decoder"].path))


def test_folders_that_are_not_empty_are_refused_unless_forced(package_path: Path, tmp_path: Path) -> None:
    package, out = mx.open_package(package_path), tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    for write in (
        lambda force: mx.strip(package, out, force=force),
        lambda force: mx.convert(package, out, "dot", force=force),
        lambda force: mx.select(package, "op=MatMul", output=out, force=force),
    ):
        with pytest.raises(mx.UserError, match="is not empty"):
            write(False)
        assert "notes.txt" in folder_content(out)
        write(True)
        assert folder_content(out)["notes.txt"] == b"mine"
    assert {"encoder.dot", "decoder.txt", "modelexport.json"} < {*folder_content(out)}


@pytest.mark.parametrize("where", [".", "inside", ".."])
def test_a_package_is_never_written_over_itself(where: str, package_path: Path) -> None:
    package, before = mx.open_package(package_path), folder_content(package_path)
    target = package_path / where
    for write in (
        lambda: mx.strip(package, target, force=True),
        lambda: mx.convert(package, target, "dot", force=True),
        lambda: mx.select(package, "op=MatMul", output=target, force=True),
    ):
        with pytest.raises(mx.UserError, match="is read here"):
            write()
    assert folder_content(package_path) == before


def test_a_failure_leaves_nothing(package_path: Path, tmp_path: Path) -> None:
    def fail(component: mx.Component, target: Path) -> None:
        target.write_bytes(b"half")
        if component.name == "decoder":
            raise RuntimeError

    with pytest.raises(RuntimeError):
        rewrite_package(mx.open_package(package_path), tmp_path / "out", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["talker"]


@pytest.mark.parametrize(
    ("to", "ending"),
    [("model-explorer", "json"), ("graphml", "graphml"), ("dot", "dot"), ("mermaid", "mmd"), ("csv", "csv")],
)
def test_every_file_is_converted(to: str, ending: str, package_path: Path, tmp_path: Path) -> None:
    written = mx.convert(mx.open_package(package_path), tmp_path / "out", to)
    assert {*folder_content(tmp_path / "out")} == {f"encoder.{ending}", f"decoder.{ending}"}
    assert written.files["encoder"] == (tmp_path / "out" / f"encoder.{ending}",)
    single = mx.convert(package_path / "encoder_model.onnx", tmp_path / f"encoder.{ending}", to)
    assert single.path.read_bytes() == written.files["encoder"][0].read_bytes()


def test_netron_gets_a_package(package_path: Path, tmp_path: Path) -> None:
    written = mx.convert(mx.open_package(package_path), tmp_path / "out", "netron")
    package = mx.open_package(tmp_path / "out")
    assert written.files["decoder"] == (package["decoder"].path,)
    names = [node.name for node in package["decoder"].file.proto.graph.node]
    assert any("decoder/layers.0/k" in name.replace("/layers/0", "/layers.0") for name in names)
    assert mx.validate(package).ok
    with pytest.raises(mx.UserError, match="no overlays"):
        mx.convert(package, tmp_path / "other", "netron", against=package)


def test_packages_are_shown_beside_packages(package_path: Path, tmp_path: Path) -> None:
    package = mx.open_package(package_path)
    other = mx.open_package(PackageRecipe().write(tmp_path / "other"))
    written = mx.convert(package, tmp_path / "out", "model-explorer", against=other)
    assert [path.name for path in written.files["encoder"]] == ["encoder.json", "encoder.encoder_model.sync.json"]


def test_selections_are_one_file_for_each_component(package_path: Path, tmp_path: Path) -> None:
    package = mx.open_package(package_path)
    written = mx.select(package, "op=MatMul", "ort-exclude", output=tmp_path / "out")
    assert json.loads(written.files["encoder"][0].read_text()) == ["node_e0", "node_last_hidden_state"]
    assert len(json.loads(written.files["decoder"][0].read_text())) == 4
    only = mx.select(package, "op=Gather", "ort-exclude", output=tmp_path / "only")
    assert [*only.files] == ["decoder"]
    assert "nothing is selected in encoder" in only.notes


def test_a_selection_in_one_component_needs_no_folder(package_path: Path) -> None:
    package = mx.open_package(package_path)
    assert mx.select(package, "op=Gather").text == "node_e\n"
    with pytest.raises(mx.UserError, match="encoder, decoder, and a tool is told about one file"):
        mx.select(package, "op=MatMul")
    with pytest.raises(mx.UserError, match="nothing is selected in any file"):
        mx.select(package, "op=Gather & op=MatMul")
    with pytest.raises(mx.UserError, match="unknown op"):
        mx.select(package, "op=Gahter")
    with pytest.raises(mx.UserError, match="is read here"):
        mx.select(package, "op=Gather", named=package.folder / "named")


def test_a_package_with_names_is_written_beside_the_lists(package_path: Path, tmp_path: Path) -> None:
    for file in ("encoder_model.onnx", "decoder_model.onnx"):
        model = onnx.load(package_path / file)
        for node in model.graph.node:
            node.name = ""
        onnx.save(model, package_path / file)
    write_package(package_path, read_description(package_path))
    with pytest.raises(mx.UserError, match="would be one folder"):
        mx.select(package_path, "op=Gather", output=tmp_path / "x", named=tmp_path / "x")
    written = mx.select(
        mx.open_package(package_path), "op=Gather", "ort-exclude", output=tmp_path / "lists", named=tmp_path / "named"
    )
    named = mx.open_package(tmp_path / "named")
    assert [*written.files] == ["decoder"]
    names = json.loads(written.files["decoder"][0].read_text())
    assert set(names) <= {node.name for node in named["decoder"].file.graph.nodes}
    assert all(node.name for name in named for node in named[name].file.graph.nodes)
    assert mx.validate(named).ok


def test_annotated_models_are_written_for_each_component(package_path: Path, tmp_path: Path) -> None:
    written = mx.select(mx.open_package(package_path), "op=MatMul", "layer-ann", output=tmp_path / "out")
    assert {path.name for path in written.files["encoder"]} == {"encoder.onnx", "encoder.hierarchy.json"}
    assert onnx.load(tmp_path / "out" / "encoder.onnx").graph.node


def test_pairs_and_links_that_are_gone_are_dropped(package_path: Path, tmp_path: Path) -> None:
    """What a component is described by are the ends that its file has."""
    package = mx.open_package(package_path)

    def rename_outputs(component: mx.Component, target: Path) -> None:
        model = onnx.load(component.path)
        for value in model.graph.output:
            model.graph.node.append(onnx.helper.make_node("Identity", [value.name], [f"{value.name}_out"]))
            value.name = f"{value.name}_out"
        onnx.save(model, target)

    written = rewrite_package(package, tmp_path / "out", rename_outputs)
    assert written.info.links == ()
    assert written["decoder"].info.cache == ()
    assert written["encoder"].info.outputs == ("last_hidden_state_out",)


def test_files_that_the_package_does_not_list_are_not_copied(package_path: Path, tmp_path: Path) -> None:
    (package_path / "secret.txt").write_text("mine")
    edit_description(package_path, lambda _: None)
    package = mx.strip(mx.open_package(package_path), tmp_path / "plain").package
    assert "secret.txt" not in folder_content(package.folder)


def test_components_in_folders_stay_there(tmp_path: Path) -> None:
    """transformers.js keeps its files in `onnx/`, with their weights beside them."""
    source = PackageRecipe().write(tmp_path / "talker")
    inner = source / "onnx"
    inner.mkdir()
    share_weights(source)
    for path in [*source.glob("*_model.*"), source / "weights"]:
        path.rename(inner / path.name)
    components = tuple(
        replace(component, file=f"onnx/{component.file}", data=("onnx/weights/all.data",))
        for component in PackageRecipe().info().components
    )
    (source / "modelexport.json").unlink()
    write_package(source, replace(PackageRecipe().info(), components=components))
    package = mx.strip(mx.open_package(source), tmp_path / "plain").package
    assert {*folder_content(package.folder)} == {
        "modelexport.json",
        "config.json",
        "onnx/encoder_model.onnx",
        "onnx/decoder_model.onnx",
        "onnx/weights/all.data",
    }
    assert package.info.components == components
    assert mx.validate(package).ok


@pytest.mark.parametrize(
    ("target", "shares"), [("genai", True), ("optimum", True), ("", True), ("transformersjs", False)]
)
def test_weights_are_stored_once_where_the_consumer_allows_it(
    package_path: Path, tmp_path: Path, target: str, shares: bool
) -> None:
    edit_description(package_path, lambda document: document.update(target=target))
    weight = np.random.default_rng(0).standard_normal((600, 600)).astype(np.float32)

    def write(component: mx.Component, path: Path) -> None:
        model = onnx.load(component.path)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, f"large_{component.name}"))
        onnx.save(model, path)

    package = rewrite_package(mx.open_package(package_path), tmp_path / "out", write)
    data = {component.info.data for component in package.components.values()}
    suffix = "_data" if target == "optimum" else ".data"
    assert data == {(f"shared.onnx{suffix}",)} if shares else data == {()}
    written = sum(len(content) for content in folder_content(package.folder).values())
    assert (written < 2 * weight.nbytes) == shares
    for component in package.components.values():
        stored = {item.name: item for item in onnx.load(component.path).graph.initializer}
        assert np.array_equal(onnx.numpy_helper.to_array(stored[f"large_{component.name}"]), weight)
    assert not [*find_changed_files(package.folder, package.info)]
