"""Contract: what one consumer of a package expects, as a table and a few pure functions.

    contract = find_contract("genai")
    contract.files["decoder"]                       {"decoder": "model.onnx"}          kind, component, file
    contract.refuse(ModelFacts(…))                  raises before anything is exported
    contract.write_configuration(ModelFacts(…))     {"genai_config.json": "…"}

Kind: which components a model consists of. Nothing here loads a model, runs a graph or reads a weight; a graph is known
by the names and shapes of its inputs and outputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import onnx

from modelexport.errors import TargetUnsuitable
from modelexport.graph.types import dims_of
from modelexport.record.configuration import ModelConfiguration
from modelexport.record.package import CachePair

DECODER, ENCODER_DECODER, MULTIMODAL, SINGLE = "decoder", "encoder_decoder", "multimodal", "single"
FIRST_CALL = "first_call"  # other modalities, and a decoder for the first call beside the one for later ones
PIPELINE = "pipeline"  # networks of diffusers, each in a folder of its own
CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"

# What tokenizers and processors of transformers save, and files that a model's own folder has for them.
SIDE_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.spm",
    "*.model",
    "*.tiktoken",
    "normalizer.json",
    "chat_template*",
    "*preprocessor_config.json",
    "processor_config.json",
    "image_processor_config.json",
)

Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class ComponentGraph:
    """Inputs and outputs of a component's graph with their shapes; names of open axes are text."""

    name: str
    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]
    cache: tuple[CachePair, ...] = ()


@dataclass(frozen=True)
class ModelFacts:
    """What a contract is asked about.

    components  may be without outputs, or missing, as long as nothing is exported
    external    files whose weights lie in a file of their own, as the contract names them
    """

    configuration: ModelConfiguration
    kind: str
    components: tuple[ComponentGraph, ...] = ()
    external: frozenset[str] = frozenset()

    def component(self, name: str) -> ComponentGraph | None:
        return next((component for component in self.components if component.name == name), None)


def _find_nothing(_: ModelFacts) -> str:
    return ""


def _keep_name(file: str, _: str) -> str:
    return file


def _keep_configuration(configuration: Mapping[str, Any], _: frozenset[str]) -> Mapping[str, Any]:
    return configuration


@dataclass(frozen=True)
class Contract:
    """One consumer of packages.

    files            for each kind of model that the consumer runs, the file of each component
    configure        content of configuration files by name
    find_obstacle    why the consumer cannot run a model; empty if it can
    data_suffix      the file with the weights of `model.onnx` is called `model.onnx` and this
    shares_data      whether files of a package may have their weights in one common file
    forgets          whether layers with a sliding window may drop tokens that are out of it; otherwise every layer of
                     the cache must be as long as the past, and the mask hides what is out of the window
    axes             names of axes that the consumer reads a meaning from, by ours
    rename           the consumer's name of an input or output, by ours
    name_variant     the file of a component by the type of its numbers: `model.onnx` in int4 is `model_q4.onnx`
    list_external    config.json with what the consumer reads there of files whose weights are in a file of their own
    unused           components that the consumer does without: it puts features in the place of tokens by itself, or
                     has a graph do it
    encodes_keys     whether the encoder returns keys and values of its states, which one decoder takes in all calls
    """

    name: str
    consumer: str
    files: Mapping[str, Mapping[str, str]]
    configure: Callable[[ModelFacts], dict[str, str]]
    find_obstacle: Callable[[ModelFacts], str] = _find_nothing
    data_suffix: str = ".data"
    shares_data: bool = True
    forgets: bool = True
    axes: Mapping[str, str] = field(default_factory=dict)
    rename: Callable[[str], str] = str
    name_variant: Callable[[str, str], str] = _keep_name
    list_external: Callable[[Mapping[str, Any], frozenset[str]], Mapping[str, Any]] = _keep_configuration
    unused: frozenset[str] = frozenset()
    encodes_keys: bool = False

    @property
    def merges(self) -> bool:
        """Whether one decoder runs all steps of an encoder-decoder."""
        return "decoder_merged" in self.files.get(ENCODER_DECODER, {})

    def refuse(self, facts: ModelFacts) -> None:
        """Raise if the consumer cannot run such a model. Before an export, and again when its components are known."""
        if facts.kind not in self.files:
            problem = f"it runs {' and '.join(map(_describe_kind, self.files))}, not {_describe_kind(facts.kind)}"
        else:
            problem = self.find_obstacle(facts)
        if problem:
            raise TargetUnsuitable(
                f"{self.consumer} cannot run this {facts.configuration.model_type or 'model'}: {problem}",
                "Export without --target for a package that other programs can load.",
            )

    def file_of(self, kind: str, component: str) -> str:
        other = f"{component}/model.onnx" if kind == PIPELINE else f"{component}.onnx"
        return self.files[kind].get(component, other)

    def data_file(self, file: str) -> str:
        return file + self.data_suffix

    def write_configuration(self, facts: ModelFacts) -> dict[str, str]:
        """Texts of the configuration files by name, for the graphs as they were exported."""
        self.refuse(facts)
        return self.configure(facts)


def _describe_kind(kind: str) -> str:
    described = {
        DECODER: "decoders",
        ENCODER_DECODER: "encoder-decoders",
        MULTIMODAL: "language models with other modalities",
        FIRST_CALL: "language models that compute something else in the first call than in later ones",
        SINGLE: "models of one forward pass",
        PIPELINE: "pipelines",
    }
    return described.get(kind, kind)


def describe_graph(name: str, graph: onnx.GraphProto, cache: tuple[CachePair, ...] = ()) -> ComponentGraph:
    def shapes(values: Iterable[onnx.ValueInfoProto]) -> dict[str, Shape]:
        return {value.name: dims_of(value.type) or () for value in values}

    return ComponentGraph(name, shapes(graph.input), shapes(graph.output), cache)


def find_kind(components: Iterable[str]) -> str:
    """The kind of a model by the names of its components: encoder and decoder are an encoder-decoder."""
    names = set(components)
    if not names & {"decoder", "decoder_merged"}:
        return SINGLE
    if "encoder" in names:
        return ENCODER_DECODER
    if not names & {"vision_encoder", "audio_encoder", "embed_tokens"}:
        return DECODER
    return FIRST_CALL if "decoder_with_past" in names else MULTIMODAL


def expect_kind(configuration: ModelConfiguration) -> str:
    """The kind of a model that generates by its configuration alone, before it is run."""
    if configuration.model.get("is_encoder_decoder"):
        return ENCODER_DECODER
    nested = [key for key, value in configuration.model.items() if key.endswith("_config") and _is_model(value)]
    return MULTIMODAL if set(nested) - {"text_config"} else DECODER


def _is_model(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value.get("model_type"))


def is_side_file(name: str) -> bool:
    """Whether a file of a model's folder belongs beside its ONNX files: `tokenizer.json`, not `model.safetensors`."""
    return any(fnmatchcase(name, pattern) for pattern in SIDE_FILES)


def show_shape(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


def write_json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def save_configuration(facts: ModelFacts) -> dict[str, str]:
    """`config.json` and, for a model that generates, `generation_config.json`."""
    configuration = facts.configuration
    files = {CONFIG: write_json(configuration.model)}
    return files | ({GENERATION_CONFIG: write_json(configuration.generation)} if configuration.generation else {})
