from __future__ import annotations

import dataclasses
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tests.support.children import run_child

from modelexport.errors import FileUnreadable, FileUnwritable, ModelExportError, UserError
from modelexport.graph.file import weights as wire
from modelexport.graph.file import writing as layout
from modelexport.graph.file.external import set_external
from modelexport.graph.file.reading import open_model, parse_model
from modelexport.graph.file.weights import Lazy, Span, Typed, storage_size
from modelexport.graph.file.writing import save_model

in_tmp_path = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
TYPES = sorted(set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED, TensorProto.STRING})


def raw(tensor: onnx.TensorProto) -> onnx.TensorProto:
    return tensor


def typed(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """The same values in float_data, int32_data, ... instead of raw_data."""
    array = numpy_helper.to_array(tensor)
    return helper.make_tensor(tensor.name, tensor.data_type, list(tensor.dims), array.flatten())


@st.composite
def tensors(draw: st.DrawFn, name: str) -> onnx.TensorProto:
    dims = draw(st.sampled_from([[], [0], [3], [40, 7], [30, 50], [2, 0, 5]]))
    if draw(st.integers(0, 9)) == 0:
        return onnx.TensorProto(
            name=name, dims=dims, data_type=TensorProto.STRING, string_data=[b"text"] * int(np.prod(dims))
        )
    tensor = onnx.TensorProto(name=name, dims=dims, data_type=draw(st.sampled_from(TYPES)))
    size = storage_size(tensor)
    tensor.raw_data = bytes(draw(st.integers(0, 1)) for _ in range(7)) * (size // 7) + bytes(size % 7)
    if draw(st.booleans()) and size and not draw(st.booleans()):
        tensor = typed(tensor)
    if draw(st.booleans()):
        tensor.doc_string = "said after the data"
    return tensor


@st.composite
def graphs(draw: st.DrawFn, prefix: str, depth: int) -> onnx.GraphProto:
    names = [f"{prefix}w{i}" for i in range(draw(st.integers(0, 4)))]
    graph = onnx.GraphProto(name=prefix, initializer=[draw(tensors(name)) for name in names])
    for i in range(draw(st.integers(0, 2))):
        node = helper.make_node("Constant", [], [f"{prefix}c{i}"], value=draw(tensors("value")))
        if depth and draw(st.booleans()):
            node = helper.make_node("If", ["x"], [f"{prefix}c{i}"], then_branch=draw(graphs(f"{prefix}{i}", depth - 1)))
        graph.node.append(node)
    for name in names:
        if draw(st.booleans()):
            graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    if draw(st.booleans()):
        values = numpy_helper.from_array(np.ones(400, np.float32), f"{prefix}sparse")
        indices = numpy_helper.from_array(np.arange(400))
        graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [1000]))
    return graph


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    model = helper.make_model(draw(graphs("main", 2)), ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    if draw(st.booleans()):
        body = draw(graphs("function", 1))
        model.functions.append(helper.make_function("d", "f", [], [], body.node, [helper.make_opsetid("", 20)]))
    return model


def elements(tensor: onnx.TensorProto) -> bytes | list[bytes]:
    strings = tensor.data_type == TensorProto.STRING
    return list(tensor.string_data) if strings else numpy_helper.to_array(tensor).tobytes()


def linear_model(size: int = 1000) -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.arange(size, dtype=np.float32), "weight")
    small = numpy_helper.from_array(np.ones(1, np.float32), "small")
    nodes = [
        helper.make_node("Mul", ["x", "weight"], ["h"], name="a"),
        helper.make_node("Add", ["h", "small"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weight, small])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


def saved(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def loaded(path: Path) -> onnx.ModelProto:
    """The model as onnx sees it, data included and without a trace of where that was."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        tensor.ClearField("data_location")
    return model


def external_model(path: Path) -> onnx.ModelProto:
    model = linear_model()
    onnx.save(model, path, save_as_external_data=True, location="elsewhere.bin", size_threshold=10)
    return linear_model()


@given(model=models())
@in_tmp_path
def test_reading_and_writing_gives_the_same_bytes(model: onnx.ModelProto, tmp_path: Path) -> None:
    path = saved(model, tmp_path / "a.onnx")
    save_model(open_model(path), tmp_path / "b.onnx")
    assert (tmp_path / "b.onnx").read_bytes() == path.read_bytes()


@given(model=models(), threshold=st.sampled_from([0, 1024]))
@in_tmp_path
def test_external_and_back_keeps_every_value(model: onnx.ModelProto, threshold: int, tmp_path: Path) -> None:
    path = saved(model, tmp_path / "a.onnx")
    save_model(open_model(path), tmp_path / "b.onnx", external_data=True, threshold=threshold)
    save_model(open_model(tmp_path / "b.onnx"), tmp_path / "c.onnx", external_data=False)
    for before, after in zip(model.graph.initializer, onnx.load(tmp_path / "c.onnx").graph.initializer, strict=True):
        assert (before.name, before.dims, before.data_type) == (after.name, after.dims, after.data_type)
        assert elements(before) == elements(after)


@given(model=models(), data=st.data())
@in_tmp_path
def test_a_truncated_file_is_unreadable_and_nothing_else(
    model: onnx.ModelProto, data: st.DataObject, tmp_path: Path
) -> None:
    content = model.SerializeToString()
    shorter = content[: data.draw(st.integers(0, len(content) - 1))]
    (tmp_path / "a.onnx").write_bytes(shorter)
    try:
        opened = open_model(tmp_path / "a.onnx")
    except FileUnreadable:
        return
    # Cut between two top-level fields after the last that must be there, the rest is a model too.
    assert opened.proto.opset_import
    assert onnx.ModelProto.FromString(shorter).IsInitialized()


@given(model=models(), data=st.data())
@in_tmp_path
def test_a_damaged_file_is_read_or_unreadable_and_nothing_else(model: onnx.ModelProto, data: st.DataObject) -> None:
    content = bytearray(model.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FileUnreadable):
        parse_model(content)


@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_unreadable(content: bytes) -> None:
    with suppress(FileUnreadable):
        parse_model(content)


@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("convert", [raw, typed])
def test_every_type_is_detached_with_the_bytes_that_onnx_would_store(
    data_type: int, convert: Callable[[onnx.TensorProto], onnx.TensorProto]
) -> None:
    tensor = onnx.TensorProto(name="w", dims=[5000], data_type=data_type)
    tensor.raw_data = b"\x01" * storage_size(tensor)  # not 0, which onnx rounds to 1 as a FLOAT8E8M0 number
    model = linear_model()
    model.graph.initializer.append(convert(tensor))
    opened = parse_model(model.SerializeToString())
    data = opened.weights["w"]
    assert isinstance(data, Span if convert is not typed else Typed)
    assert data.nbytes == len(data.raw()) == storage_size(tensor)
    assert bytes(data.raw()) == tensor.raw_data
    header = opened.proto.graph.initializer[-1]
    assert header == onnx.TensorProto(name="w", dims=[5000], data_type=data_type)


def test_small_constants_stay_and_large_ones_are_views(tmp_path: Path) -> None:
    content = linear_model().SerializeToString()
    opened = parse_model(content)
    assert list(opened.weights) == ["weight"]
    assert opened.weights["weight"].raw().obj is content
    assert numpy_helper.to_array(opened.proto.graph.initializer[1]) == 1


def test_unpacked_values_and_fields_from_the_future_survive(tmp_path: Path) -> None:
    values = b"".join(wire.varint(4 << 3 | wire.FIXED32) + bytes(4) for _ in range(500))
    unknown = wire.varint(1000 << 3 | wire.VARINT) + b"\x07"
    header = onnx.TensorProto(dims=[1000], data_type=1, name="w").SerializeToString()
    tensor = values + unknown + header + values
    graph = wire.join(wire.delimited(5, [memoryview(tensor)]))
    model = helper.make_model(onnx.GraphProto(name="g")).SerializeToString() + wire.join(
        wire.delimited(7, [memoryview(graph)])
    )
    opened = parse_model(model + unknown)
    assert bytes(opened.weights["w"].raw()) == bytes(4000)
    save_model(opened, tmp_path / "b.onnx")
    assert onnx.ModelProto.FromString(model + unknown) == onnx.load(tmp_path / "b.onnx")
    assert (tmp_path / "b.onnx").read_bytes().count(unknown) == 2


@pytest.mark.parametrize("order", [(0, 1000), (1000, 0), (1000, 2000), (3, 1000)])
def test_initializers_with_one_name_keep_their_own_data(order: tuple[int, int], tmp_path: Path) -> None:
    model = linear_model()
    model.graph.initializer.extend(numpy_helper.from_array(np.full(2 * n, n % 100, np.int8), "twice") for n in order)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(5000), "once"))
    path = saved(model, tmp_path / "a.onnx")
    save_model(open_model(path), path)
    assert path.read_bytes() == model.SerializeToString()


def test_metadata_is_added_in_place(tmp_path: Path) -> None:
    path = saved(linear_model(), tmp_path / "a.onnx")
    opened = open_model(path)
    opened.proto.graph.node[0].metadata_props.add(key="k", value="v")
    assert save_model(opened, path) == (path,)
    after = onnx.load(path)
    assert after.graph.node[0].metadata_props.pop().value == "v"
    assert after == linear_model()
    assert [file.name for file in tmp_path.iterdir()] == ["a.onnx"]


def test_data_in_the_proto_replaces_detached_data(tmp_path: Path) -> None:
    opened = parse_model(linear_model().SerializeToString())
    opened.proto.graph.initializer[0].raw_data = bytes(4000)
    save_model(opened, tmp_path / "a.onnx")
    assert not numpy_helper.to_array(onnx.load(tmp_path / "a.onnx").graph.initializer[0]).any()


@pytest.mark.parametrize("external_data", [True, False])
def test_lazy_data_is_read_once_and_only_when_written(external_data: bool, tmp_path: Path) -> None:
    reads = []

    def read() -> bytes:
        reads.append(1)
        return np.arange(1000, dtype=np.float32).tobytes()

    opened = parse_model(linear_model().SerializeToString())
    lazy = dataclasses.replace(opened, weights={"weight": Lazy(4000, read)})
    assert not reads
    save_model(lazy, tmp_path / "a.onnx", external_data=external_data)
    assert reads == [1]
    assert loaded(tmp_path / "a.onnx") == linear_model()


def test_lazy_data_of_another_size_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    opened = parse_model(linear_model().SerializeToString())
    lazy = dataclasses.replace(opened, weights={"weight": Lazy(4000, lambda: bytes(3999))})
    with pytest.raises(ModelExportError, match="4000 bytes gave 3999"):
        save_model(lazy, tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


def test_external_data_is_aligned_and_named_after_the_model(tmp_path: Path) -> None:
    model = linear_model()
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3000), "other"))
    opened = open_model(saved(model, tmp_path / "a.onnx"))
    files = save_model(opened, tmp_path / "b.onnx", external_data=True)
    assert files == (tmp_path / "b.onnx", tmp_path / "b.onnx.data")
    structure = onnx.load(tmp_path / "b.onnx", load_external_data=False)
    entries = [{e.key: e.value for e in tensor.external_data} for tensor in structure.graph.initializer]
    assert entries[0] == {"location": "b.onnx.data", "offset": "0", "length": "4000"}
    assert entries[1] == {}
    assert entries[2] == {"location": "b.onnx.data", "offset": "4096", "length": "24000"}
    assert loaded(tmp_path / "b.onnx") == model
    assert opened.proto.graph.initializer[0].external_data == []


def _sizes(files: Iterable[Path]) -> list[tuple[str, int]]:
    return [(path.name, path.stat().st_size) for path in files]


def test_a_model_that_could_not_tell_is_away_while_its_data_is_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between two moves then leaves no model rather than one with the weights of another."""
    path, replace, model_was_there = tmp_path / "m.onnx", Path.replace, dict[str, bool]()

    def watching(self: Path, target: Path) -> Path:
        model_was_there[Path(target).name] = path.exists()
        return replace(self, target)

    for value in (1.0, 2.0):
        weight = numpy_helper.from_array(np.full(512, value, np.float32), "w")
        model = helper.make_model(helper.make_graph([], "g", [], [], [weight]))
        monkeypatch.setattr(Path, "replace", watching)
        save_model(parse_model(model.SerializeToString()), path, external_data=True)
        monkeypatch.undo()
    assert model_was_there == {"m.onnx.data": False, "m.onnx": False}
    assert numpy_helper.to_array(loaded(path).graph.initializer[0])[0] == 2.0


def test_shards_have_at_most_the_size_unless_one_tensor_is_larger(tmp_path: Path) -> None:
    model = linear_model()  # its weight has 4,000 bytes
    for number, count in enumerate((1000, 1500, 3000, 500)):
        model.graph.initializer.append(numpy_helper.from_array(np.full(count, number, np.float64), f"w{number}"))
    save_model(open_model(saved(model, tmp_path / "a.onnx")), tmp_path / "b.onnx", external_data=True, shard_size=20000)
    shards = sorted(tmp_path.glob("b.onnx-*"))
    assert _sizes(shards) == [
        ("b.onnx-00001-of-00004.data", 4096 + 8000),
        ("b.onnx-00002-of-00004.data", 12000),
        ("b.onnx-00003-of-00004.data", 24000),
        ("b.onnx-00004-of-00004.data", 4000),
    ]
    assert loaded(tmp_path / "b.onnx") == model
    # A copy reads all of them, and has one.
    copied = save_model(open_model(tmp_path / "b.onnx"), tmp_path / "c.onnx")
    assert [path.name for path in copied] == ["c.onnx", "c.onnx.data"]
    assert loaded(tmp_path / "c.onnx") == model


def test_what_does_not_fit_on_the_disk_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_model(saved(linear_model(), tmp_path / "a.onnx"))
    usage = shutil.disk_usage(tmp_path)._replace(free=3000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage)
    with pytest.raises(FileUnwritable, match=r"no space left on device: 4\.\d+ KB are needed, and 3 KB are free"):
        save_model(opened, tmp_path / "b.onnx", external_data=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.onnx"]


_KILLED = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from modelexport.graph.file.reading import open_model
from modelexport.graph.file.weights import Lazy
from modelexport.graph.file.writing import save_model

path = Path(sys.argv[1])
opened = open_model(path)
die = Lazy(opened.weights["other"].nbytes, lambda: os.kill(os.getpid(), signal.SIGKILL))
save_model(replace(opened, weights={**opened.weights, "other": die}), path, external_data=True, shard_size=4096)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_writer_that_is_killed_between_shards_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = linear_model()
    for name in ("first", "other"):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(30_000), name))
    path = saved(model, tmp_path / "a.onnx")
    ended = run_child([sys.executable, "-c", _KILLED, str(path)])
    assert ended.returncode == -signal.SIGKILL
    left = [file for file in tmp_path.iterdir() if file != path]
    assert sum(file.stat().st_size for file in left) >= 240_000  # the first shard, under a name that nobody reads
    assert not any(".data" in file.name for file in left)
    assert loaded(path) == model
    # Whoever writes there next removes it.
    files = save_model(open_model(path), path, external_data=True, shard_size=4096)
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert loaded(path) == model


def test_what_fits_into_one_shard_is_the_usual_data_file(tmp_path: Path) -> None:
    opened = open_model(saved(linear_model(), tmp_path / "a.onnx"))
    files = save_model(opened, tmp_path / "b.onnx", external_data=True, shard_size=1_000_000)
    assert [path.name for path in files] == ["b.onnx", "b.onnx.data"]


def test_a_copy_never_overwrites_a_shard_that_it_reads(tmp_path: Path) -> None:
    model = linear_model()
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3000), "other"))
    opened = open_model(saved(model, tmp_path / "a.onnx"))
    save_model(opened, tmp_path / "b.onnx", external_data=True, shard_size=4096)
    before = [path.read_bytes() for path in sorted(tmp_path.glob("b.onnx-*"))]
    (tmp_path / "b.onnx").rename(tmp_path / "moved.onnx")
    with pytest.raises(FileUnwritable, match="holds the weights of the model that is being copied"):
        save_model(open_model(tmp_path / "moved.onnx"), tmp_path / "b.onnx", external_data=True, shard_size=4096)
    assert [path.read_bytes() for path in sorted(tmp_path.glob("b.onnx-*"))] == before


def test_external_data_stays_where_it_is_when_a_model_is_rewritten_in_place(tmp_path: Path) -> None:
    model = external_model(tmp_path / "a.onnx")
    before = (tmp_path / "elsewhere.bin").stat()
    opened = open_model(tmp_path / "a.onnx")
    opened.proto.producer_name = "changed"
    assert save_model(opened, tmp_path / "a.onnx") == (tmp_path / "a.onnx",)
    assert (tmp_path / "elsewhere.bin").stat() == before
    model.producer_name = "changed"
    assert loaded(tmp_path / "a.onnx") == model


@pytest.mark.parametrize("name", ["sub/a.onnx", "b.onnx"])
def test_external_data_is_carried_along_to_another_place(name: str, tmp_path: Path) -> None:
    model = external_model(tmp_path / "a.onnx")
    (tmp_path / "sub").mkdir()
    target = tmp_path / name
    files = save_model(open_model(tmp_path / "a.onnx"), target)
    assert files == (target, target.with_name(target.name + ".data"))
    (tmp_path / "elsewhere.bin").unlink()
    assert loaded(target) == model


def test_external_data_and_new_data_go_into_one_file_in_place(tmp_path: Path) -> None:
    model = linear_model()
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3000), "other"))
    path = tmp_path / "a.onnx"
    save_model(parse_model(model.SerializeToString()), path, external_data=True)
    opened = open_model(path)
    opened.proto.graph.initializer.append(numpy_helper.from_array(np.full(900, 7), "third"))
    model.graph.initializer.append(numpy_helper.from_array(np.full(900, 7), "third"))
    save_model(opened, path, external_data=True)
    assert loaded(path) == model
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.onnx", "a.onnx.data"]


def test_a_copy_does_not_overwrite_the_data_of_its_source(tmp_path: Path) -> None:
    save_model(parse_model(linear_model().SerializeToString()), tmp_path / "b.onnx", external_data=True)
    (tmp_path / "b.onnx").rename(tmp_path / "a.onnx")
    with pytest.raises(FileUnwritable, match="holds the weights"):
        save_model(open_model(tmp_path / "a.onnx"), tmp_path / "b.onnx")
    assert loaded(tmp_path / "a.onnx") == linear_model()


def test_external_tensors_inside_bodies_are_carried_along(tmp_path: Path) -> None:
    model = linear_model()
    inner = numpy_helper.from_array(np.arange(2000), "inner")
    body = onnx.GraphProto(name="body", initializer=[inner])
    model.graph.node.append(helper.make_node("If", ["x"], ["z"], then_branch=body))
    expected = model.SerializeToString()
    tensor = model.graph.node[-1].attribute[0].g.initializer[0]
    (tmp_path / "inner.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="inner.bin")
    (tmp_path / "sub").mkdir()
    opened = open_model(saved(model, tmp_path / "a.onnx"))
    save_model(opened, tmp_path / "sub" / "a.onnx", external_data=False)
    assert (tmp_path / "sub" / "a.onnx").read_bytes() == expected
    save_model(opened, tmp_path / "sub" / "b.onnx")
    assert (tmp_path / "sub" / "b.onnx.data").read_bytes() == inner.raw_data


@pytest.mark.parametrize("location", ["/etc/passwd", "../secret", "sub/../../secret", "link", "C:\\secret", ""])
def test_external_data_outside_of_the_folder_is_not_read(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(4000))
    (folder / "link").symlink_to(tmp_path / "secret")
    model = linear_model()
    set_external(model.graph.initializer[0], location, 0, 4000)
    with pytest.raises(FileUnreadable):
        save_model(open_model(saved(model, folder / "a.onnx")), tmp_path / "b.onnx")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model", "secret"]


@pytest.mark.parametrize("content", [None, b"", b"short"])
def test_missing_or_short_external_data_is_unreadable(content: bytes | None, tmp_path: Path) -> None:
    external_model(tmp_path / "a.onnx")
    (tmp_path / "elsewhere.bin").unlink()
    if content is not None:
        (tmp_path / "elsewhere.bin").write_bytes(content)
    opened = open_model(tmp_path / "a.onnx")
    with pytest.raises(FileUnreadable, match=r"elsewhere\.bin"):
        opened.weights["weight"].raw()


def test_external_data_of_a_model_from_memory_cannot_be_found(tmp_path: Path) -> None:
    external_model(tmp_path / "a.onnx")
    opened = parse_model((tmp_path / "a.onnx").read_bytes())
    with pytest.raises(FileUnreadable, match="not read from a folder"):
        opened.weights["weight"].raw()


@pytest.mark.parametrize("key", ["offset", "length"])
@pytest.mark.parametrize("value", ["-1", "one"])
def test_senseless_external_entries_are_unreadable(key: str, value: str, tmp_path: Path) -> None:
    model = linear_model()
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="x")
    tensor.external_data.add(key=key, value=value)
    with pytest.raises(FileUnreadable, match="'weight'"):
        open_model(saved(model, tmp_path / "a.onnx"))


def test_above_the_limit_data_moves_out_unless_one_file_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "_COMFORTABLE", 3000)
    opened = parse_model(linear_model().SerializeToString())
    assert len(save_model(opened, tmp_path / "a.onnx")) == 2
    assert len(save_model(opened, tmp_path / "b.onnx", external_data=False)) == 1
    huge = dataclasses.replace(opened, weights={"weight": Lazy(3 * 10**9, lambda: b"")})
    with pytest.raises(UserError, match=r"would be 3.0 GB"):
        save_model(huge, tmp_path / "c.onnx", external_data=False)
    assert not (tmp_path / "c.onnx").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git lfs pull"),
        (b"hello, world", "is not an ONNX model"),
        (b'{"architectures": ["Bert"]}', "is not an ONNX model"),
        (b"PK\x03\x04" + bytes(100), "is not an ONNX model"),
        (linear_model().SerializeToString()[:-30], "truncated or damaged"),
        (b"\x08\x0a", "truncated or damaged"),
    ],
)
def test_what_is_not_a_model_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(content)
    with pytest.raises(FileUnreadable, match=message):
        open_model(tmp_path / "a.onnx")


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match="no such file"):
        open_model(tmp_path / "a.onnx")
    with pytest.raises(FileUnreadable, match="is a folder"):
        open_model(tmp_path)
    with pytest.raises(FileUnreadable, match="not a regular file"):
        open_model(Path("/dev/null"))
    with pytest.raises(FileUnreadable, match="not a directory"):
        open_model(Path(__file__) / "a.onnx")
