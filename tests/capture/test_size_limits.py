"""Size limits: configurations that ask for too much are refused before anything is built, by any of their numbers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from torch import nn
from torch.nn.modules import module as registration

from modelexport.capture.loading import size_limits
from modelexport.capture.loading.models import load_model
from modelexport.capture.loading.size_limits import ensure_buildable, ensure_readable, limit_construction
from modelexport.errors import ModelUnloadable
from modelexport.record.model_source import ModelSource


def _build(configuration: Mapping[str, object]) -> nn.Module:
    """Names that no library uses: what counts modules is found out."""
    inner = configuration["inner"]
    assert isinstance(inner, dict)
    width, depth, rows = int(inner["breadth"]), int(inner["storeys"]), int(str(configuration["rows"]))
    return nn.Sequential(nn.Embedding(rows, width), *(nn.Sequential(nn.Linear(width, width)) for _ in range(depth)))


def _configuration(rows: int = 10, breadth: int = 8, storeys: int = 2) -> dict[str, object]:
    return {"rows": rows, "inner": {"breadth": breadth, "storeys": storeys}, "is_small": True}


def test_a_model_that_fits_is_not_refused() -> None:
    ensure_buildable(_configuration(), _build, "m")


@pytest.mark.parametrize(
    ("configuration", "said"),
    [
        (_configuration(storeys=10**6), "2,000,002 modules and 288 MB of weights (inner.storeys is 1000000)"),
        (_configuration(storeys=10**6, rows=10**9), "(inner.storeys is 1000000)"),
        (_configuration(rows=10**15), "6 modules and 32 PB of weights"),
        (_configuration(breadth=10**8), "6 modules and 80 PB of weights"),
    ],
)
def test_absurd_numbers_are_refused_with_the_size(configuration: dict[str, object], said: str) -> None:
    started = time.monotonic()
    with pytest.raises(ModelUnloadable) as refused:
        ensure_buildable(configuration, _build, "m")
    assert said in refused.value.message
    assert time.monotonic() - started < 60


def test_a_number_in_a_list_is_found() -> None:
    def build(configuration: Mapping[str, object]) -> nn.Module:
        depths = configuration["depths"]
        assert isinstance(depths, list)
        return nn.Sequential(*(nn.Identity() for depth in depths for _ in range(depth)))

    with pytest.raises(ModelUnloadable, match=r"1,000,004 modules .*\(depths.1 is 1000000\)"):
        ensure_buildable({"depths": [2, 10**6, 1]}, build, "m")


def test_two_numbers_that_multiply_are_both_to_blame() -> None:
    def build(configuration: Mapping[str, object]) -> nn.Module:
        rows, columns = int(str(configuration["rows"])), int(str(configuration["columns"]))
        return nn.Sequential(*(nn.Sequential(*(nn.Identity() for _ in range(columns))) for _ in range(rows)))

    with pytest.raises(ModelUnloadable, match=r"1,000,001,000,001 modules .*\(rows is 1000000, columns is 1000000\)"):
        ensure_buildable({"rows": 10**6, "columns": 10**6}, build, "m")


def test_numbers_that_add_up_are_both_to_blame() -> None:
    """Either alone is too many to build. The width counts no modules, and is as it was."""

    def build(configuration: Mapping[str, object]) -> nn.Module:
        towers = [dict(tower) for tower in (configuration["text"], configuration["vision"]) if isinstance(tower, dict)]
        return nn.ModuleList(nn.Linear(tower["width"], 1) for tower in towers for _ in range(tower["depth"]))

    tower = {"width": 2 * 10**6, "depth": 10**6}
    with pytest.raises(ModelUnloadable) as refused:
        ensure_buildable({"text": tower, "vision": {**tower}}, build, "m")
    assert "2,000,001 modules and 16 TB of weights (text.depth is 1000000, vision.depth is 1000000)" in str(
        refused.value.message
    )


def test_what_no_numbers_explain_is_stopped_while_building(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_limits, "_QUICKLY_BUILT", 100)
    monkeypatch.setattr(size_limits, "_MOST_MODULES", 500)

    def build(configuration: Mapping[str, object]) -> nn.Module:
        return nn.Sequential(*(nn.Identity() for _ in range(len(str(configuration["rows"])) * 100)))

    configuration = {"rows": 10**6}
    ensure_buildable(configuration, build, "m")
    with pytest.raises(ModelUnloadable, match="more than 501 modules"), limit_construction("m"):
        build(configuration)


def test_lists_without_end_are_refused_before_a_configuration_is_read() -> None:
    """A number among many that make no list, and one that no list is made of."""
    others = {f"label {number}": number for number in range(150_000)}
    configuration = {"ids": others, "names": 10**12, "base": 10**13}

    def read(changed: Mapping[str, object]) -> object:
        assert int(str(changed["names"])) <= 2
        return {"names": ["name"] * int(str(changed["names"])), "others": changed["ids"]}

    with pytest.raises(ModelUnloadable, match=r"1,000,000,150,002 entries \(names is 1000000000000\)"):
        ensure_readable(configuration, read, "m")


@pytest.mark.parametrize(
    "large",
    [
        {"num_labels": 10**8},
        {"model_type": "llava", "text_config": {"model_type": "llama", "num_labels": 10**9}},
        {"model_type": "gemma2", "num_hidden_layers": 10**12},
    ],
)
def test_configurations_of_transformers_are_not_read(large: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **large}))
    with pytest.raises(ModelUnloadable, match=r"itself would have [\d,]{9,} entries"):
        load_model(str(tmp_path / "config.json"), ModelSource(str(tmp_path)))


def test_another_file_that_a_configuration_names_is_measured(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert", "configuration_files": ["config.4.0.0.json"]}')
    (tmp_path / "config.4.0.0.json").write_text('{"model_type": "bert", "num_labels": 100000000}')
    with pytest.raises(ModelUnloadable, match=r"200,000,0\d\d entries"):
        load_model(str(tmp_path), ModelSource(str(tmp_path)))


def test_large_numbers_of_real_models_are_read(tmp_path: Path) -> None:
    """The sizes of a vocabulary, positions, frequencies and lengths without a limit, of models that exist."""
    raw = {
        "model_type": "llama",
        "architectures": ["LlamaForSequenceClassification"],
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 80,
        "num_attention_heads": 2,
        "vocab_size": 256_000,
        "max_position_embeddings": 10_485_760,
        "rope_theta": 500_000_000,
        "num_labels": 100_000,
        "model_max_length": 1000000000000000019884624838656,
    }
    (tmp_path / "config.json").write_text(json.dumps(raw))
    module = load_model(str(tmp_path), ModelSource(str(tmp_path))).module
    assert sum(parameter.numel() for parameter in module.parameters()) > 256_000 * 16 + 100_000 * 16


def test_weights_are_counted_while_any_model_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_limits, "available_memory", lambda: 1_000)
    with pytest.raises(ModelUnloadable, match=r"and 4 KB of weights"), limit_construction("nets.py:build"):
        nn.Linear(1000, 1, bias=False)
    with limit_construction("m"):
        layer = nn.Linear(10, 15, bias=False)  # 600 bytes: too many if they counted twice
        nn.Linear(10, 15, device="meta").weight = layer.weight
        nn.LazyLinear(4)
        nn.Linear(10**6, 10**6, device="meta")


def test_other_threads_and_later_models_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_limits, "_MOST_MODULES", 3)
    built: list[nn.Module] = []
    before = len(registration._global_parameter_registration_hooks), nn.Module.__init__
    with limit_construction("m"):
        thread = threading.Thread(target=lambda: built.append(nn.Sequential(*(nn.ReLU() for _ in range(9)))))
        thread.start()
        thread.join()
    assert len(built) == 1
    assert (len(registration._global_parameter_registration_hooks), nn.Module.__init__) == before


def test_a_configuration_of_a_million_layers_is_refused(tmp_path: Path) -> None:
    raw = {"model_type": "gpt2", "architectures": ["GPT2Model"], "n_embd": 64, "n_head": 2, "n_layer": 10**6}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ModelUnloadable, match=r"13,000,006 modules and .* of weights \(n_layer is 1000000"):
        load_model(str(tmp_path), ModelSource(str(tmp_path)))


_UNET: dict[str, object] = {
    "sample_size": 8,
    "block_out_channels": [32, 32],
    "layers_per_block": 1,
    "down_block_types": ["DownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "UpBlock2D"],
    "norm_num_groups": 8,
}
_TEXT: dict[str, object] = {
    "model_type": "clip_text_model",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
}


def _write_pipeline(folder: Path, **changes: Mapping[str, object]) -> Path:
    """Without weights: whether these are there is looked at later."""
    parts: dict[str, tuple[list[str], dict[str, object], str]] = {
        "unet": (["diffusers", "UNet2DModel"], _UNET, "config.json"),
        "text_encoder": (["transformers", "CLIPTextModel"], _TEXT, "config.json"),
        "scheduler": (["diffusers", "DDPMScheduler"], {"num_train_timesteps": 10}, "scheduler_config.json"),
    }
    for name, (_, configuration, file) in parts.items():
        (folder / name).mkdir()
        (folder / name / file).write_text(json.dumps({**configuration, **changes.get(name, {})}))
    index = {"_class_name": "DDPMPipeline", **{name: kind for name, (kind, _, _) in parts.items()}}
    (folder / "model_index.json").write_text(json.dumps({**index, **changes.get("index", {})}))
    return folder


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"unet": {"layers_per_block": 10**6}},
            r"unet' is of a model with [\d,]{9,} modules .*layers_per_block is 1000000",
        ),
        ({"unet": {"block_out_channels": [32, 32 * 10**6]}}, r"unet' is of a model with \d+ modules and [\d.]+ PB"),
        ({"text_encoder": {"num_hidden_layers": 10**6}}, r"text_encoder' is of a model .*num_hidden_layers is 1000000"),
        ({"text_encoder": {"num_labels": 10**9}}, r"text_encoder' itself would have 2,000,0\d\d,\d{3} entries"),
        ({"scheduler": {"num_train_timesteps": 10**12}}, r"scheduler' itself would have .*num_train_timesteps is"),
        ({"index": {"../vae": ["diffusers", "AutoencoderKL"]}}, r"names a part outside of its folder: '../vae'"),
    ],
)
def test_parts_of_a_pipeline_are_measured_before_they_are_built(
    changes: dict[str, Mapping[str, object]], said: str, tmp_path: Path
) -> None:
    pytest.importorskip("diffusers")
    folder = _write_pipeline(tmp_path, **changes)
    started = time.monotonic()
    with pytest.raises(ModelUnloadable, match=said):
        load_model(str(folder), ModelSource(str(folder)))
    assert time.monotonic() - started < 120


def test_a_pipeline_of_usual_size_is_read(tmp_path: Path) -> None:
    """As far as to its weights, which are not there."""
    pytest.importorskip("diffusers")
    folder = _write_pipeline(tmp_path, scheduler={"num_train_timesteps": 100_000})
    with pytest.raises(ModelUnloadable, match=r"no file named|safetensors"):
        load_model(str(folder), ModelSource(str(folder)))
