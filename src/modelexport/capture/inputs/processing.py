"""Processors: real text and a real image, through the tokenizer and the processor that came with the model.

    --text "hello"      AutoTokenizer                  input_ids, attention_mask      2 x tokens
    --image cat.jpg     AutoImageProcessor             pixel_values                   2x3x224x224
    both                AutoProcessor, if it is there  all of them, with image tokens in the text

The batch is the same sample twice: torch would fix a batch axis that it sees with size 1. Where no image processor can
be loaded, the image is resized and normalised by what preprocessor_config.json says, and a note tells so.
https://huggingface.co/docs/transformers/processors
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from modelexport.capture.inputs.media_recipes import USUAL_SIZE, size_pair
from modelexport.capture.inputs.specs import InputRequest
from modelexport.capture.loading.third_party import hub_is_reachable, library, quiet_transformers, summarize_error
from modelexport.errors import ExtraMissing, InputError
from modelexport.record.json_reading import read_json_object

_COPIES = 2
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "*.model", "*.tiktoken")
_PREPROCESSOR = "preprocessor_config.json"


@dataclass(frozen=True)
class ProcessedInputs:
    """Tensors by the names that tokenizer and processor give them, which are those of `forward`."""

    values: Mapping[str, torch.Tensor]
    notes: tuple[str, ...] = ()


def process_inputs(source: str | Path | None, request: InputRequest, size: tuple[int, int] | None) -> ProcessedInputs:
    if request.text is None and request.image is None:
        return ProcessedInputs({})
    image = None if request.image is None else _open_image(request.image)
    with quiet_transformers():
        if request.text is not None and image is not None:
            together = _process_together(source, request.text, image)
            if together is not None:
                return ProcessedInputs(together)
        text = {} if request.text is None else _tokenize(source, request.text)
        pixels = ProcessedInputs({}) if image is None else _process_image(source, image, size)
    return ProcessedInputs({**text, **pixels.values}, pixels.notes)


def preprocessor_size(source: str | Path | None) -> tuple[int, int] | None:
    """The image size that the preprocessor of a local folder makes, if it says."""
    settings = _preprocessor_settings(source)
    return size_pair(settings.get("crop_size")) or size_pair(settings.get("size"))


def _preprocessor_settings(source: str | Path | None) -> Mapping[str, Any]:
    path = None if source is None else Path(source) / _PREPROCESSOR
    return {} if path is None or not path.is_file() else read_json_object(path)


def _load(kind: str, source: str | Path | None) -> Any:
    """Never with the checkpoint's own code; without a network only from the cache, and without waiting."""
    if source is None:
        raise InputError(f"this model comes without files, so there is no {kind}")
    offline = not Path(source).is_dir() and not hub_is_reachable()
    loader = getattr(library("transformers"), kind)
    return loader.from_pretrained(source, trust_remote_code=False, local_files_only=offline)


def _tokenize(source: str | Path | None, text: str) -> Mapping[str, torch.Tensor]:
    _require_tokenizer_files(source)
    try:
        tokenizer = _load("AutoTokenizer", source)
        return dict(tokenizer([text] * _COPIES, return_tensors="pt"))
    except Exception as error:
        raise InputError(
            f"--text: the tokenizer of {str(source)!r} cannot be used: {summarize_error(error)}",
            "Give token ids instead: --inputs FILE.npz.",
        ) from error


def _require_tokenizer_files(source: str | Path | None) -> None:
    """Without files transformers would quietly build a tokenizer that knows five tokens."""
    folder = None if source is None else Path(source)
    is_local = folder is not None and folder.is_dir()
    if folder is None or (is_local and not any(any(folder.glob(name)) for name in _TOKENIZER_FILES)):
        owner = "this model" if source is None else repr(str(source))
        raise InputError(
            f"--text: there is no tokenizer with {owner}",
            "Save one beside the model with tokenizer.save_pretrained, or use --input input_ids=2x16.",
        )


def _open_image(path: Path) -> Any:
    try:
        from PIL import Image, UnidentifiedImageError  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise ExtraMissing.of_import("--image", "PIL", error, "pip install pillow") from error
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except FileNotFoundError as error:
        raise InputError(f"--image: there is no file {str(path)!r}") from error
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise InputError(f"--image: {str(path)!r} cannot be read as an image: {error}") from error


def _process_together(source: str | Path | None, text: str, image: Any) -> Mapping[str, torch.Tensor] | None:
    """One processor for both, which also puts image tokens into the text; None if there is no such thing."""
    try:
        processor = _load("AutoProcessor", source)
        token = getattr(processor, "image_token", None)
        prompt = f"{token}{text}" if isinstance(token, str) and token not in text else text
        features = processor(text=[prompt] * _COPIES, images=[image] * _COPIES, return_tensors="pt")
    except Exception:  # noqa: BLE001 - text and image are then processed each on its own, with errors of their own
        return None
    return {name: value for name, value in features.items() if isinstance(value, torch.Tensor)}


def _process_image(source: str | Path | None, image: Any, size: tuple[int, int] | None) -> ProcessedInputs:
    try:
        processor = _load("AutoImageProcessor", source)
        features = processor(images=[image] * _COPIES, return_tensors="pt")
    except Exception as error:  # noqa: BLE001 - its reason becomes a note
        return _process_plainly(source, image, size, error)
    return ProcessedInputs({name: value for name, value in features.items() if isinstance(value, torch.Tensor)})


def _process_plainly(
    source: str | Path | None, image: Any, size: tuple[int, int] | None, error: Exception
) -> ProcessedInputs:
    """Resize and normalise by what preprocessor_config.json says, or to the range -1 to 1 without one."""
    settings = _preprocessor_settings(source)
    height, width = preprocessor_size(source) or size or USUAL_SIZE
    pixels = np.asarray(image.resize((width, height)), dtype=np.float32) / 255.0
    mean, deviation = settings.get("image_mean", 0.5), settings.get("image_std", 0.5)
    normal = (pixels - np.asarray(mean, np.float32)) / np.asarray(deviation, np.float32)
    picture = torch.from_numpy(normal.transpose(2, 0, 1).copy())
    reason = summarize_error(error)
    note = f"the image was only resized to {height}x{width} and normalised; no image processor: {reason}"
    return ProcessedInputs({"pixel_values": picture.repeat(_COPIES, 1, 1, 1)}, (note,))
