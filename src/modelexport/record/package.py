"""Package: a folder of ONNX files that make one model together, described by `modelexport.json` in it.

    whisper/  modelexport.json               this description
              encoder_model.onnx             encoder: input_features ─► last_hidden_state
              decoder_model.onnx             decoder: input_ids, encoder_hidden_states ─► logits, present.*
              decoder_with_past_model.onnx   decoder_with_past: input_ids, past_key_values.* ─► logits, present.*
              config.json, tokenizer.json, …

Component: one file and what it is for. Every component carries a record of its own; module paths in all of them are
those of the whole model. Link: an output of one component that feeds an input of another. Cache pair: an output that is
handed to an input in the next step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PACKAGE_FILE = "modelexport.json"
PACKAGE_SCHEMA_VERSION = 1


class Axis:
    """Names of axes that graphs of models that generate have in common.

    PAST    tokens that the cache holds
    TOTAL   those and the new ones
    WINDOW  tokens that the cache of a layer with a sliding window holds; it drops those that are out of the window
    """

    BATCH = "batch"
    SEQUENCE = "sequence"
    PAST = "past_sequence"
    TOTAL = "total_sequence"
    WINDOW = "past_window"


@dataclass(frozen=True)
class CachePair:
    """State of generation: the output `present` of one step is the input `past` of the next.

    first   what every element of a state holds before the first token, where no axis of it is that of past tokens
    window  tokens that the state of a layer with a sliding window keeps at most; 0 for other states
    """

    past: str
    present: str
    first: float = 0.0
    window: int = 0


@dataclass(frozen=True)
class ComponentLink:
    """`source`'s output `output` feeds `target`'s input `input`. Both are names of components."""

    source: str
    output: str
    target: str
    input: str

    def __str__(self) -> str:
        return f"{self.source}.{self.output} → {self.target}.{self.input}"


@dataclass(frozen=True)
class StoredFile:
    """Size and SHA-256 of a file, as it was written."""

    nbytes: int
    sha256: str


@dataclass(frozen=True)
class ComponentInfo:
    """One file of a package.

    name   what it is for: decoder, decoder_with_past, encoder, vision_encoder, embed_tokens, unet, …
    file   the .onnx file, relative to the folder, with forward slashes
    data   files with weights that it refers to; several components may share one
    """

    name: str
    file: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    cache: tuple[CachePair, ...] = ()
    data: tuple[str, ...] = ()


@dataclass(frozen=True)
class AbsentModule:
    """A module with parameters that is in no file of the package, and why."""

    path: str
    class_name: str
    parameters: int
    reason: str


@dataclass(frozen=True)
class PackageInfo:
    """The content of `modelexport.json`.

    target  the consumer that the folder is laid out for: genai, optimum, transformersjs; empty for none
    model   where the model came from
    files   every file of the package but `modelexport.json` itself, by its path relative to the folder
    """

    components: tuple[ComponentInfo, ...]
    target: str = ""
    model: str = ""
    task: str = ""
    links: tuple[ComponentLink, ...] = ()
    absent: tuple[AbsentModule, ...] = ()
    files: Mapping[str, StoredFile] = field(default_factory=dict)
    notes: Sequence[str] = ()
