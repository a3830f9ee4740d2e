"""Where a model and its inputs come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from modelexport.capture.arguments import CallArguments, bind_arguments
from modelexport.capture.inputs import InputRequest, dynamic_axes, make_inputs, parse_input_spec
from modelexport.capture.loading import LoadedModel, LoadOptions, load_model

Step = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class SourceOptions:
    """How to load a model and make its inputs."""

    load: LoadOptions
    text: str | None = None
    image: str | Path | None = None
    input: tuple[str, ...] = ()
    input_specs: str | Path | None = None
    static: bool = False


@dataclass(frozen=True)
class Prepared:
    """A module that can be run: its arguments, the axes of theirs that shall be dynamic, and what to know about it."""

    module: torch.nn.Module
    inputs: CallArguments
    axes: Mapping[str, Mapping[int, str]]
    source: str
    notes: tuple[str, ...] = ()


def prepare(model: torch.nn.Module | str | Path, inputs: object, options: SourceOptions, step: Step) -> Prepared:
    with step("load"):
        loaded = _load(model, options)
    with step("inputs"):
        return _with_inputs(loaded, inputs, options)


def _load(model: torch.nn.Module | str | Path, options: SourceOptions) -> LoadedModel:
    if isinstance(model, torch.nn.Module):
        return LoadedModel(model, type(model).__name__, None, None, ())
    return load_model(str(model), options.load)


def _with_inputs(loaded: LoadedModel, inputs: object, options: SourceOptions) -> Prepared:
    arrays = Path(inputs) if isinstance(inputs, (str, Path)) else None
    given = inputs if arrays is None and inputs is not None else loaded.inputs
    described = arrays or options.input or options.input_specs or options.text or options.image
    if given is not None and not described:
        arguments = bind_arguments(loaded.module, given)
        return Prepared(loaded.module, arguments, dynamic_axes(arguments.tensors), loaded.source, loaded.notes)
    request = InputRequest(
        text=options.text,
        image=None if options.image is None else Path(options.image),
        shapes=tuple(map(parse_input_spec, options.input)),
        specs_file=None if options.input_specs is None else Path(options.input_specs),
        arrays_file=arrays,
        seed=options.load.seed,
        static=options.static,
    )
    made = make_inputs(loaded.module, loaded.processing, request)
    arguments = bind_arguments(loaded.module, made.values)
    return Prepared(loaded.module, arguments, made.axes, loaded.source, (*loaded.notes, *made.notes))
