from __future__ import annotations

import importlib
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from modelexport.capture.loading import pretrained
from modelexport.capture.loading.models import load_model
from modelexport.capture.loading.third_party import LoadedModel
from modelexport.errors import ModelExportError, ModelNotFound, ModelUnloadable, UnknownName, UserError
from modelexport.record.model_source import ModelSource

# Untyped: what the lazy modules of transformers export is hidden from mypy.
transformers: Any = importlib.import_module("transformers")

TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 40,
    "max_position_embeddings": 32,
}


@pytest.fixture(scope="module", autouse=True)
def _silent_saving() -> Iterator[None]:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    torch.manual_seed(7)
    transformers.BertModel(transformers.BertConfig(**TINY)).save_pretrained(folder)
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def load(source: str | Path, **options: Any) -> LoadedModel:
    return load_model(str(source), ModelSource(**options))


def refusal(source: str | Path, kind: type[ModelExportError], **options: Any) -> str:
    with pytest.raises(kind) as caught:
        load(source, **options)
    assert isinstance(caught.value, UserError)
    assert caught.value.message
    return str(caught.value)


def edit_config(folder: Path, **changes: object) -> Path:
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    return folder


# Folders and configurations


def test_a_saved_folder_comes_back_as_it_was(saved: Path) -> None:
    loaded = load(saved)
    original = transformers.BertModel.from_pretrained(saved)
    assert type(loaded.module) is transformers.BertModel
    assert not loaded.module.training
    assert loaded.folder == saved
    assert loaded.processing == saved
    assert loaded.source == str(saved)
    assert loaded.notes == ()
    for name, weight in original.state_dict().items():
        assert torch.equal(weight, loaded.module.state_dict()[name])


def test_sharded_weights_are_loaded(tmp_path: Path, saved: Path) -> None:
    whole = transformers.BertModel.from_pretrained(saved)
    whole.save_pretrained(tmp_path, max_shard_size="4KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    loaded = load(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), loaded.module.parameters(), strict=True))


@pytest.mark.parametrize("as_file", [False, True])
def test_a_configuration_alone_gives_random_weights_from_the_seed(copy: Path, as_file: bool) -> None:
    (copy / "model.safetensors").unlink()
    source = copy / "config.json" if as_file else copy
    first, again, other = load(source), load(source), load(source, seed=1)
    weight = "embeddings.word_embeddings.weight"
    assert torch.equal(first.module.state_dict()[weight], again.module.state_dict()[weight])
    assert not torch.equal(first.module.state_dict()[weight], other.module.state_dict()[weight])
    assert first.notes == ("random weights (config.json without weights), seed 0",)
    assert first.folder == copy


def test_naming_config_json_ignores_the_weights_beside_it(saved: Path) -> None:
    assert "random weights" in load(saved / "config.json").notes[0]


def test_loading_leaves_the_random_state_alone(saved: Path) -> None:
    torch.manual_seed(3)
    random.seed(3)
    before, python_before = torch.random.get_rng_state(), random.getstate()
    load(saved)
    load(saved / "config.json", seed=5)
    assert torch.equal(before, torch.random.get_rng_state())
    assert python_before == random.getstate()


def test_loading_says_nothing(saved: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load(saved, task="text-classification")
    load(saved / "config.json")
    assert capfd.readouterr() == ("", "")


def test_quiet_settings_are_put_back(saved: Path) -> None:
    transformers.utils.logging.set_verbosity_warning()
    load(saved)
    assert transformers.utils.logging.get_verbosity() == transformers.utils.logging.WARNING
    transformers.utils.logging.set_verbosity_error()


def test_dtype_is_that_of_the_options(saved: Path) -> None:
    assert next(load(saved, dtype="float16").module.parameters()).dtype is torch.float16
    assert next(load(saved / "config.json", dtype="bfloat16").module.parameters()).dtype is torch.bfloat16
    assert "float32" in refusal(saved, UnknownName, dtype="float23")


def test_unknown_device_is_a_user_error(saved: Path) -> None:
    assert "--device cpu" in refusal(saved, ModelUnloadable, device="nowhere")


# Classes and tasks


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("feature-extraction", "BertModel"),
        ("text-classification", "BertForSequenceClassification"),
        ("sentiment-analysis", "BertForSequenceClassification"),
        ("fill-mask", "BertForMaskedLM"),
        ("question-answering", "BertForQuestionAnswering"),
        ("multiple-choice", "BertForMultipleChoice"),
    ],
)
def test_a_task_chooses_the_class(saved: Path, task: str, expected: str) -> None:
    assert type(load(saved / "config.json", task=task).module).__name__ == expected


def test_text2text_generation_is_a_sequence_to_sequence_model(tmp_path: Path) -> None:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    transformers.T5Config(vocab_size=40, **sizes).save_pretrained(tmp_path)
    module = load(tmp_path, task="text2text-generation").module
    assert type(module) is transformers.T5ForConditionalGeneration


def test_the_architecture_of_the_configuration_chooses_the_class(copy: Path) -> None:
    edit_config(copy, architectures=["BertForMaskedLM"])
    assert type(load(copy / "config.json").module) is transformers.BertForMaskedLM
    edit_config(copy, architectures=None)
    assert type(load(copy).module) is transformers.BertModel


def test_missing_weights_become_a_note(saved: Path) -> None:
    (note,) = load(saved, task="text-classification").notes
    assert note == "not in the checkpoint, so random from seed 0: classifier.bias, classifier.weight"


def test_unknown_and_impossible_tasks(saved: Path) -> None:
    assert "Did you mean 'fill-mask'?" in refusal(saved, UnknownName, task="fill-masks")
    assert "'bert'" in refusal(saved, ModelUnloadable, task="image-classification")


# Bad folders


def test_a_missing_folder(tmp_path: Path) -> None:
    assert "no folder or file" in refusal(tmp_path / "nothing", ModelNotFound)
    assert "no folder or file" in refusal("./nothing.json", ModelNotFound)
    assert "no folder or file" in refusal("", ModelNotFound)


def test_a_folder_without_configuration(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert "notes.txt" in refusal(tmp_path, ModelUnloadable)


@pytest.mark.parametrize("content", ["{", "[1]", "\udcff"])
def test_a_broken_configuration(copy: Path, content: str) -> None:
    (copy / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert "config.json" in refusal(copy, ModelUnloadable)


def test_reasons_of_transformers_are_kept(copy: Path) -> None:
    assert "'hidden_size' expected int" in refusal(edit_config(copy, hidden_size="wide"), ModelUnloadable)
    assert "`zzz`" in refusal(edit_config(copy, model_type="zzz"), ModelUnloadable)
    assert "model_type" in refusal(edit_config(copy, model_type=None), ModelUnloadable)


def test_an_unknown_architecture(copy: Path) -> None:
    assert "'BertForNothing'" in refusal(edit_config(copy, architectures=["BertForNothing"]), ModelUnloadable)
    # Any other public name of transformers must not be called as if it were a model.
    assert "'pipeline'" in refusal(edit_config(copy, architectures=["pipeline"]), ModelUnloadable)


@pytest.mark.parametrize("length", [0, 100, 4000])
def test_truncated_weights(copy: Path, length: int) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:length])
    assert "SafetensorError" in refusal(copy, ModelUnloadable)


def test_weights_of_another_size(copy: Path) -> None:
    text = refusal(edit_config(copy, hidden_size=32), ModelUnloadable)
    assert "(16,) in the file and (32,) in the model" in text


def test_weights_of_another_model(copy: Path) -> None:
    text = refusal(edit_config(copy, model_type="gpt2", architectures=["GPT2Model"]), ModelUnloadable)
    assert "belong to another model" in text


def test_weights_under_another_name_are_not_replaced_by_random_ones(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "weights.safetensors")
    assert "weights.safetensors" in refusal(copy, ModelUnloadable)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    (tmp_path / "net.py").touch()
    assert ".onnx file" in refusal(tmp_path / "model.onnx", ModelUnloadable)
    assert "net.py:build" in refusal(tmp_path / "net.py", ModelUnloadable)


# Safety


def test_pickled_weights_only_when_asked(copy: Path, saved: Path) -> None:
    (copy / "model.safetensors").unlink()
    state = transformers.BertModel.from_pretrained(saved).state_dict()
    torch.save(state, copy / "pytorch_model.bin")
    assert "--allow-pickle" in refusal(copy, ModelUnloadable)
    module = load(copy, allow_pickle=True).module
    assert all(torch.equal(state[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("shard", ["../x.safetensors", "/x.safetensors", "a/../../x.safetensors", "..\\x", "C:x"])
def test_an_index_may_not_leave_its_folder(copy: Path, shard: str) -> None:
    (copy / "model.safetensors").rename(copy.parent / "x.safetensors")
    index = {"weight_map": {"pooler.dense.bias": shard}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "outside its folder" in refusal(copy, ModelUnloadable)


@pytest.mark.parametrize("shard", ["pytorch_model.bin", "config.json", "weights.safetensors.pt"])
def test_an_index_of_safetensors_names_no_pickle(copy: Path, shard: str) -> None:
    """transformers goes by the suffix of each shard: it would be unpickled, whatever the index is called."""
    (copy / "model.safetensors").rename(copy / "x.safetensors")
    (copy / shard).touch()
    index = {"weight_map": {"pooler.dense.bias": "x.safetensors", "pooler.dense.weight": shard}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "would be read as a pickle" in refusal(copy, ModelUnloadable)
    assert "would be read as a pickle" in refusal(copy, ModelUnloadable, allow_pickle=True)


def test_an_incomplete_index(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    index = copy / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"pooler.dense.bias": "gone.safetensors"}}))
    assert "gone.safetensors" in refusal(copy, ModelUnloadable)
    index.write_text("{}")
    assert "weight_map" in refusal(copy, ModelUnloadable)


def write_remote_code(folder: Path) -> Path:
    (folder / "modeling_own.py").write_text(
        "import pathlib\n"
        f"pathlib.Path({str(folder / 'ran')!r}).touch()\n"
        "from transformers import PreTrainedConfig, BertModel, BertConfig\n"
        "class OwnConfig(BertConfig):\n    model_type = 'own'\n"
        "class OwnModel(BertModel):\n    config_class = OwnConfig\n"
    )
    code = {"AutoConfig": "modeling_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}
    return edit_config(folder, model_type="own", architectures=["OwnModel"], auto_map=code)


def test_remote_code_is_refused_and_not_run(copy: Path) -> None:
    write_remote_code(copy)
    assert "--trust-remote-code" in refusal(copy, ModelUnloadable)
    assert "--trust-remote-code" in refusal(copy / "config.json", ModelUnloadable)
    assert not (copy / "ran").exists()


def test_remote_code_runs_when_trusted(copy: Path) -> None:
    write_remote_code(copy)
    assert type(load(copy, trust_remote_code=True).module).__name__ == "OwnModel"
    assert (copy / "ran").exists()


def test_code_for_an_architecture_that_transformers_has_is_not_needed(copy: Path) -> None:
    edit_config(copy, auto_map={"AutoModel": "modeling_own.OwnModel"})
    loaded = load(copy)
    assert type(loaded.module) is transformers.BertModel
    assert "auto_map" in loaded.notes[0]


# The hub


@pytest.fixture
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "hub_is_reachable", lambda: False)


@pytest.mark.usefixtures("_offline")
@pytest.mark.parametrize("source", ["modelexport-tests/no-such-model", "no-such-model-anywhere"])
def test_an_unreachable_hub_says_offline_and_what_to_do(source: str) -> None:
    text = refusal(source, ModelNotFound)
    assert "offline" in text
    assert "-m ./folder" in text


def test_a_model_that_the_hub_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    def cached_file(*_: object, **__: object) -> None:
        raise OSError("org/name is not a valid model identifier\n\nIf this is a private repository, ...")

    monkeypatch.setattr(pretrained, "hub_is_reachable", lambda: True)
    monkeypatch.setattr(transformers.utils, "cached_file", cached_file)
    text = refusal("org/name", ModelNotFound)
    assert "not a valid model identifier" in text
    assert "private repository" not in text


def test_the_hub_is_asked_once_and_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = []

    class Session:
        def head(self, _url: str, timeout: float) -> None:
            asked.append(timeout)
            raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.utils, "get_session", Session)
    assert "offline" in refusal("modelexport-tests/no-such-model", ModelNotFound)
    assert asked == [pytest.approx(5)]


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch, saved: Path, tmp_path: Path) -> Path:
    """The files of tiny/bert in a cache as the hub client writes it, which stands in for the hub."""
    commit = "0" * 40
    repository = tmp_path / "models--tiny--bert"
    shutil.copytree(saved, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(pretrained, "hub_is_reachable", lambda: False)
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return repository / "snapshots" / commit


@pytest.mark.usefixtures("cached")
def test_a_hub_model_is_loaded_by_its_id() -> None:
    loaded = load("tiny/bert")
    assert type(loaded.module) is transformers.BertModel
    assert (loaded.folder, loaded.processing) == (None, "tiny/bert")


def test_an_index_of_the_hub_names_no_pickle(cached: Path) -> None:
    index = {"weight_map": {"pooler.dense.bias": "pytorch_model.bin"}}
    (cached / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "would be read as a pickle" in refusal("tiny/bert", ModelUnloadable)


# Callables

NETS = """
import torch
from missing_neighbour_or_not import WIDTH

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, 2)

    def forward(self, x):
        return self.linear(x)

def with_inputs():
    return Net().train(), {"x": torch.ones(3, WIDTH)}

def fails():
    raise ZeroDivisionError("no luck")

def deeper():
    return torch.ones(2).reshape(fails())

def mistyped():
    return "a" + 1

def wants(size):
    return Net()

def wrong():
    return Net(), torch.ones(3)

class factory:
    build = staticmethod(Net)

ready = Net()
number = 3
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "nets_of_test.py").write_text(NETS)
    (tmp_path / "missing_neighbour_or_not.py").write_text("WIDTH = 4\n")
    monkeypatch.chdir(tmp_path)
    yield "nets_of_test"
    for name in ("nets_of_test", "missing_neighbour_or_not"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["Net", "factory.build", "ready"])
def test_a_callable_of_the_current_directory(nets: str, name: str) -> None:
    path = list(sys.path)
    loaded = load(f"{nets}:{name}")
    assert loaded.module(torch.ones(1, 4)).shape == (1, 2)
    assert (loaded.inputs, loaded.folder, loaded.processing) == (None, None, None)
    assert sys.path == path


def test_a_callable_may_give_inputs_too(nets: str) -> None:
    loaded = load(f"{nets}:with_inputs", dtype="float64")
    assert not loaded.module.training
    assert next(loaded.module.parameters()).dtype is torch.float64
    assert loaded.inputs is not None
    assert list(loaded.inputs) == ["x"]


def test_a_callable_in_a_file(nets: str, tmp_path: Path) -> None:
    assert load(f"{tmp_path / nets}.py:Net").module(torch.ones(1, 4)).shape == (1, 2)
    assert "no file" in refusal(f"{tmp_path}/absent.py:Net", ModelNotFound)


def test_weights_of_a_callable_come_from_the_seed(nets: str) -> None:
    first, again = load(f"{nets}:Net").module, load(f"{nets}:Net").module
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


def test_callables_that_cannot_be_used(nets: str) -> None:
    assert "Did you mean 'Net'?" in refusal(f"{nets}:Nett", ModelNotFound)
    text = refusal(f"{nets}:q", ModelNotFound)
    assert "Known: Net, " in text
    assert not {"__builtins__", "torch", "number"} & set(re.findall(r"\w+", text))
    for name in ("fails", "deeper"):
        text = refusal(f"{nets}:{name}", ModelUnloadable)
        assert "no luck (ZeroDivisionError)" in text
        assert re.search(rf"{nets}\.py:\d+, in fails\.", text)
        assert "without arguments" not in text
    assert ", in mistyped." in refusal(f"{nets}:mistyped", ModelUnloadable)
    assert "The callable is called without arguments." in refusal(f"{nets}:wants", ModelUnloadable)
    assert "a tuple of Net, Tensor" in refusal(f"{nets}:wrong", ModelUnloadable)
    assert "is an int" in refusal(f"{nets}:number", ModelUnloadable)
    assert "'no_such_package'" in refusal("no_such_package.nets:build", ModelNotFound)


def test_a_module_that_lacks_a_dependency_is_not_called_missing(nets: str, tmp_path: Path) -> None:
    (tmp_path / "missing_neighbour_or_not.py").unlink()
    assert "Install 'missing_neighbour_or_not'" in refusal(f"{nets}:Net", ModelUnloadable)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_configuration_that_is_no_regular_file_is_named(tmp_path: Path) -> None:
    """It must not be said that it is missing, and not be waited for."""
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ModelNotFound, match=r"cannot read .*config\.json.*: it is not a regular file"):
        pretrained.open_checkpoint(tmp_path, allow_pickle=False)
