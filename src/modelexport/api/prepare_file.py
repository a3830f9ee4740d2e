"""A model prepared for a file: inputs that both can be run on, the type of the file, and the file judged by that run.

    file    ids: int64[1, 128]                  the model is run on 1 x 128 tokens
    file    input_ids, past_key_values.0.key    the model generates, and is called as in one of its steps

`attach`, `verify`, `extract` and `profile` run a model beside a file, and all prepare it here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from modelexport.api.environment import Clock, tool_versions
from modelexport.api.signals import SignalOptions, record_signals
from modelexport.attribute.judge import AttributionInput, AttributionResult, attribute_graph
from modelexport.attribute.strategies import CATALOGUE, strategies_named
from modelexport.errors import InputError, ModelMismatch
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.index import FLOATS, index_model
from modelexport.graph.types import input_dims, type_name
from modelexport.record.model_source import ModelSource
from modelexport.record.provenance import Origin
from modelexport.record.signals import ExporterScopes

if TYPE_CHECKING:
    from modelexport.capture.entry_point import EntryPoint
    from modelexport.capture.export import PreparedModel


def judge_prepared(file: TaggedFile, prepared: PreparedModel, strategy: str, clock: Clock) -> AttributionResult:
    """Judge a file by a model that was prepared for it."""
    from modelexport.capture.export import trace_prepared

    with clock.step("trace"):
        run = trace_prepared(prepared)
    with clock.step("record"):
        # Values are recorded whatever the strategy: they tell whether the model is the right one.
        wanted = (CATALOGUE["htp"], *strategies_named(strategy))
        options = SignalOptions(own_file=False, as_given=prepared.entry is not None)
        recorded = record_signals(wanted, run, file, ExporterScopes(), options)
    overlap = recorded.overlap
    assert overlap is not None  # it is measured whenever values are recorded, and htp asks for these
    if not overlap.belongs:
        raise ModelMismatch(
            f"{file.path} was not made from {prepared.source}: {overlap} of the file were found in the model",
            "Give the model, with the weights, that the file was exported from.",
        )
    with clock.step("attribute"):
        sizes = {} if prepared.entry is None else _find_sizes(file, prepared.entry)
        origin = Origin(strategy, "unknown", file.graph.fingerprint, prepared.source, tool_versions(), sizes)
        verdict = attribute_graph(AttributionInput(file.graph, run.hierarchy, recorded.signals, foreign=True), origin)
    return replace(verdict, notes=(*prepared.notes, *run.notes, *verdict.notes))


def _find_sizes(file: TaggedFile, entry: EntryPoint) -> dict[str, dict[int, int]]:
    """Sizes of axes that the file leaves open and calls of the model do not, by input.

    past_key [batch, 2, past, head]; batch and past change from call to call     {"past_key": {3: 16}}
    """
    sizes: dict[str, dict[int, int]] = {}
    for value in file.proto.graph.input:
        tensor, changing = entry.inputs.get(value.name), entry.axes.get(value.name, {})
        for axis, dim in enumerate(input_dims(value) or ()):
            if tensor is not None and isinstance(dim, str) and axis not in changing and tensor.shape[axis]:
                sizes.setdefault(value.name, {})[axis] = int(tensor.shape[axis])
    return sizes


# ONNX has names of its own for the types of C.
_TORCH_NAMES = {"float": "float32", "double": "float64"}
_FLOAT_NAMES = frozenset(_TORCH_NAMES.get(name, name) for name in map(type_name, FLOATS))


def fit_dtype(file: TaggedFile, source: ModelSource) -> ModelSource:
    """The source, to be loaded in the type that the model had when the file was made, unless another is asked for.

    record     q_proj.weight float16, …     the model was exported in float16, whatever a tool made of the file since
    no record  initializers                 the type of most bytes of floats
    """
    if source.dtype is not None or not isinstance(source.model, str | Path):
        return source  # a live module has its type
    stored = file.embedded.provenance or file.sidecar.provenance
    sizes: Counter[str] = Counter()
    for module in () if stored is None else stored.hierarchy.modules.values():
        for tensor in module.parameters:
            sizes[_TORCH_NAMES.get(tensor.dtype, tensor.dtype)] += tensor.nbytes
    if not any(name in _FLOAT_NAMES for name in sizes):
        for weight in file.graph.initializers.values():
            sizes[_TORCH_NAMES.get(type_name(weight.dtype), type_name(weight.dtype))] += weight.nbytes
    floats = [name for name, _ in sizes.most_common() if name in _FLOAT_NAMES]
    return replace(source, file_dtype=floats[0]) if floats else source


def prepare_for_file(file: ModelFile, source: ModelSource, clock: Clock) -> PreparedModel:
    """The model, with inputs that the file can be run on as well.

    file    ids: int64[1, 128]       an axis of a fixed size
    model   makes ids of 1 x 16      so they are made again, as `--input ids=1x128:int64` would

    A file with a cache is a step of generation: then the model generates, and the cache is the one that it had.
    """
    from modelexport.capture.export import prepare_model
    from modelexport.capture.generation.file_entry import prepare_step
    from modelexport.capture.generation.input_pairing import takes_more
    from modelexport.capture.generation.prepare import can_generate

    proto = file.proto

    # The file has one graph for one run: dynamic axes are the exporter's business.
    source = replace(source, static=True)
    try:
        prepared = prepare_model(source, clock.step)
    except InputError:
        stated = _stated_shapes(proto) if source.leaves_inputs_open else ()
        if not stated:
            raise
        prepared = prepare_model(replace(source, input=stated), clock.step)
    if takes_more(proto, prepared.inputs.tensors) and can_generate(prepared.module):
        return prepare_step(file, source, prepared, clock.step)
    fixed = tuple(_fixed_inputs(proto, prepared)) if source.leaves_inputs_open else ()
    if fixed:
        again = prepare_model(replace(source.with_module(prepared.module), input=fixed), clock.step)
        prepared = replace(again, source=prepared.source, notes=(*prepared.notes, *again.notes))
    return _without_untaken(proto, prepared)


def _stated_shapes(proto: onnx.ModelProto) -> tuple[str, ...]:
    """The inputs as the file takes them, as `--input` does: none where it does not say how many axes there are."""
    from modelexport.capture.onnxruntime.inputs import make_feed

    try:
        feed = make_feed(proto, index_model(proto), seed=0)
    except InputError:
        return ()
    return tuple(f"{name}={'x'.join(map(str, array.shape))}:{array.dtype}" for name, array in feed.items())


def _without_untaken(proto: onnx.ModelProto, prepared: PreparedModel) -> PreparedModel:
    """The model without inputs that the file does not take: there, they had their defaults.

    An exporter drops an input that nothing depends on. With it, the model might compute something else than the file.
    """
    from modelexport.capture.hierarchy import run_model
    from modelexport.capture.onnxruntime.session import assign_inputs

    arrays = prepared.inputs.arrays
    try:
        file_inputs = set(assign_inputs(proto, arrays).values())
        # Arguments that are no tensors (flags, None) are no inputs of a graph, and stay.
        untaken = [name for name in prepared.inputs.kwargs if name in arrays and name not in file_inputs]
        kept = {name: value for name, value in prepared.inputs.kwargs.items() if name not in untaken}
        reduced = replace(prepared.inputs, kwargs=kept)
        if untaken:
            run_model(prepared.module, reduced)
    except InputError:
        return prepared  # it needs them all, or the file wants what is not there: what is wrong shows when it is run
    note = (f"run without {', '.join(untaken)}: the file does not take them",) if untaken else ()
    return replace(prepared, inputs=reduced, notes=(*prepared.notes, *note))


def _fixed_inputs(proto: onnx.ModelProto, prepared: PreparedModel) -> Iterator[str]:
    """Shapes that the file insists on and the made inputs do not have, as `--input` takes them.

    An input of the file that has another name in the model is paired with the first tensor of as many axes.
    """
    tensors = dict(prepared.inputs.tensors)
    # Files of an IR version before 4 list their weights among the inputs.
    data = {tensor.name for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        # Inputs that were renamed are told by their order.
        ranked = [name for name, tensor in tensors.items() if tensor.dim() == len(dims)]
        name = value.name if value.name in tensors else next(iter(ranked), None)
        if name is None or value.name in data or len(dims) != tensors[name].dim():
            continue
        tensor = tensors.pop(name)
        # A size of 0 is one that the file leaves open: protobuf's default for a dim_param.
        sizes = [dim.dim_value or size for dim, size in zip(dims, tensor.shape, strict=True)]
        if sizes != list(tensor.shape):
            yield f"{name}={'x'.join(map(str, sizes))}:{str(tensor.dtype).removeprefix('torch.')}"
