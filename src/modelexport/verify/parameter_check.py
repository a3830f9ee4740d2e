"""Parameter check: whether a model holds the weights that a file was made from.

A weight of the file is comparable with a parameter if it is a copy of it, perhaps narrower or transposed. Exporters
also store what they made *from* parameters: a convolution with a norm folded in, a product, a quantized matrix. Such a
weight equals no parameter and is no sign of another model, so only what can be nothing but a copy is said to differ.

    parameter fc.weight (4, 8)    initializer fc.weight (8, 4), its transposition          EQUAL
    parameter conv.weight         initializer onnx::Conv_12, each channel times a factor   DERIVED: a norm was folded in
    parameter fc.weight           initializer fc.weight, other numbers                     LIKELY: reported as different

Optimizers go further: they put the numbers of a weight into another order, pad it, round it. What a tool made is equal
to a parameter that it stands for if it holds the same numbers in whatever order, and otherwise cannot be compared.

Large weights are sampled, and compared with the precision of the narrowest format they went through. Whatever is
computed from weights with few bits is no finer, in whatever type that is done (`find_coarse_weights`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from modelexport.graph.algorithms import group_by_key
from modelexport.graph.file.mapped_memory import stay_within_limit
from modelexport.graph.file.reading import ModelFile, initializer_array
from modelexport.graph.sample import Sample, sample
from modelexport.record.hierarchy import Hierarchy, join
from modelexport.record.lineage import is_made_by_tool
from modelexport.record.provenance import Attribution, EvidenceKind, Provenance
from modelexport.record.results.verification import ParameterCheck, ParameterDifference

_MOST = 1 << 16
# Of a large matrix as many elements along each side, so that its transposition is sampled at the same ones.
_SIDE = 1 << 8
# Neighbours are looked at together: they are in one cache line.
_RUN = 16
# Different numbers that do not all have short fractions by chance.
_DISTINCTIVE = 16
# The bits of a float32 that bfloat16 does not have.
_LOWER_HALF = np.uint32(0xFFFF)


@dataclass(frozen=True)
class Precision:
    """What a number format can tell apart. `step` is relative; `smallest` is next to zero."""

    step: float
    smallest: float
    largest: float

    def clip(self, array: np.ndarray) -> np.ndarray:
        """The numbers in double precision, none beyond what the format can hold."""
        return np.clip(array.astype(np.float64), -self.largest, self.largest)

    def rounding_of(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """How far numbers may be apart that are the same in this format: converters round as they like."""
        rounding: np.ndarray = self.step * np.fmax(np.abs(a), np.abs(b)) + self.smallest
        return rounding


# By name, because numpy itself has no bfloat16. Narrowest first.
_FORMATS = {
    "bfloat16": Precision(2.0**-7, 2.0**-133, 3.3895e38),
    "float16": Precision(2.0**-10, 2.0**-24, 65504.0),
    "float32": Precision(2.0**-23, 2.0**-149, 3.4028e38),
    "float64": Precision(2.0**-52, 2.0**-1074, 1.7976e308),
}


def precision_of(dtype: np.dtype[Any]) -> Precision | None:
    """None for what is no plain float: integers, and floats of a byte, which mean nothing without their scales."""
    return _FORMATS.get(dtype.name)


def detect_rounding(values: np.ndarray) -> str:
    """The narrow format that numbers went through before they were widened; empty if none, or for few or whole ones."""
    if values.dtype != np.float32 or len(np.unique(values)) < _DISTINCTIVE or np.array_equal(values, np.rint(values)):
        return ""
    if not (np.ascontiguousarray(values).view(np.uint32) & _LOWER_HALF).any():
        return "bfloat16"
    with np.errstate(over="ignore"):
        half = np.array_equal(values, values.astype(np.float16).astype(np.float32))
    return "float16" if half else ""


def narrower(a: np.dtype[Any], b: np.dtype[Any]) -> Precision:
    return next(precision for name, precision in _FORMATS.items() if name in (a.name, b.name))


def sample_elements(array: np.ndarray) -> np.ndarray:
    """A table of at most 65,536 elements; of a matrix and its transposition, the same ones. `array` is not empty."""
    table = array.reshape(1, -1) if array.ndim < 2 else array.reshape(len(array), -1)
    rows, columns = table.shape
    height, down, kept_down = _blocks(rows, max(_SIDE, _MOST // columns))
    width, across, kept_across = _blocks(columns, max(_SIDE, _MOST // rows))
    blocks = table[: height * down, : width * across].reshape(height, down, width, across)
    elements: np.ndarray = blocks[:, :kept_down, :, :kept_across].reshape(height * kept_down, width * kept_across)
    return elements


def _blocks(size: int, most: int) -> tuple[int, int, int]:
    """How many blocks, how long each is, and how much of each is looked at."""
    if size <= most:
        return 1, size, size
    count = max(1, most // _RUN)
    return count, size // count, min(_RUN, size // count)


# How the record says that a weight is more than one parameter.
_MIXED = frozenset({"absorbed", "folded"})
# Steps of a number format that what was computed from a parameter may be off.
_ROUNDING = 4
# Elements of the largest weights that are put in order.
_MOST_SORTED = 1 << 24


@dataclass(frozen=True, eq=False)
class _ModelTensor:
    """One parameter or buffer of the model. `names` are all that it has, `holders` the modules that have it."""

    name: str
    names: frozenset[str]
    holders: frozenset[str]
    array: np.ndarray


@dataclass(frozen=True, slots=True)
class _Gap:
    """Between a parameter and a weight. `distance` is the root mean square of the difference."""

    equal: bool
    max_abs: float
    distance: float


class _Relation(Enum):
    """What a weight of the file is to a parameter.

    EQUAL    a copy of it
    DERIVED  made from it
    LIKELY   it can be nothing but a copy: if it differs, then because the model is another one
    UNKNOWN  of its shape
    """

    EQUAL = auto()
    DERIVED = auto()
    LIKELY = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class _Pair:
    initializer: str
    relation: _Relation
    gap: _Gap


_NO_GAP = _Gap(equal=True, max_abs=0.0, distance=0.0)
# Of another size: no copy, whatever is in it.
_NO_COPY = _Gap(equal=False, max_abs=np.inf, distance=np.inf)


def compare_parameters(
    hierarchy: Hierarchy,
    provenance: Provenance,
    parameters: Mapping[str, np.ndarray],
    constants: Iterable[tuple[str, np.ndarray]],
) -> ParameterCheck:
    """Which parameters and float buffers differ from the file's; large ones are sampled.

    parameters  by every name that they have in the model
    constants   the file's initializers, which are looked at one at a time
    """
    stored = frozenset(provenance.initializers)
    tensors = list(_distinct_tensors(hierarchy, parameters))
    named = {name: tensor for tensor in tensors for name in tensor.names}
    # What the file has under its name is compared with that alone.
    renamed = [tensor for tensor in tensors if not tensor.names & stored]
    by_module = group_by_key((path, tensor) for tensor in renamed for path in tensor.holders)
    pairs: dict[str, list[_Pair]] = {tensor.name: [] for tensor in tensors}
    for name, array in constants:
        attribution = provenance.initializers.get(name)
        if attribution is None or precision_of(array.dtype) is None:
            continue
        owners = dict.fromkeys(call.path for call in attribution.owners)
        candidates = [named[name]] if name in named else []
        for path in owners:
            candidates += by_module.get(hierarchy.canonical.get(path, path), ())
        for tensor in dict.fromkeys(candidates):
            pairs[tensor.name] += _pair_with(tensor, name, array, attribution)
    return _judge_pairs(pairs, frozenset(_find_idle_zeros(tensors, pairs)))


def _find_idle_zeros(tensors: Sequence[_ModelTensor], pairs: Mapping[str, Sequence[_Pair]]) -> Iterator[str]:
    """Parameters that are zero, and that the operator with the rest of their module leaves out: it adds nothing.

    Where nothing of the module is in the file as it is, they may have been folded into something.
    """
    equal = {name for name, paired in pairs.items() if any(pair.relation is _Relation.EQUAL for pair in paired)}
    holders = {path for tensor in tensors if tensor.name in equal for path in tensor.holders}
    for tensor in tensors:
        if tensor.holders & holders and not tensor.array.any():
            yield tensor.name
        stay_within_limit()


def _distinct_tensors(hierarchy: Hierarchy, parameters: Mapping[str, np.ndarray]) -> Iterator[_ModelTensor]:
    """Every float tensor of the model once, however many names it has."""
    seen: set[str] = set()
    for module in hierarchy.modules.values():
        for tensor in module.tensors:
            name = join(module.path, tensor.name)
            names = frozenset({*(join(path, tensor.name) for path in (module.path, *module.aliases)), *tensor.tied})
            array = parameters.get(name)
            if names & seen or array is None or not array.size or precision_of(array.dtype) is None:
                continue
            seen |= names
            yield _ModelTensor(name, names, frozenset(hierarchy.tensor_owners[name]), array)


def _judge_pairs(pairs: Mapping[str, list[_Pair]], idle: frozenset[str]) -> ParameterCheck:
    """A parameter that nothing in the file is a copy of or derived from is compared with the nearest weight that is no
    other parameter's.

    idle  those that the file need not have
    """
    candidates = [(name, pair) for name, named_pairs in pairs.items() for pair in named_pairs]
    related = [(name, pair) for name, pair in candidates if pair.relation in (_Relation.EQUAL, _Relation.DERIVED)]
    equal = {name for name, pair in related if pair.relation is _Relation.EQUAL}
    explained = {name for name, _ in related}
    assigned = {pair.initializer for _, pair in related}
    unexplained = [(name, pair) for name, pair in candidates if name not in explained]
    likely = [(name, pair) for name, pair in unexplained if pair.relation is _Relation.LIKELY]
    differing: dict[str, ParameterDifference] = {}
    for name, pair in sorted(likely, key=lambda item: item[1].gap.distance):
        if name not in differing and pair.initializer not in assigned:
            assigned.add(pair.initializer)
            differing[name] = ParameterDifference(name, pair.initializer, pair.gap.max_abs)
    return ParameterCheck(
        compared=len(equal) + len(differing),
        differing=tuple(differing[name] for name in pairs if name in differing),
        unknown=tuple(name for name in pairs if name not in equal and name not in differing and name not in idle),
    )


def _pair_with(tensor: _ModelTensor, name: str, array: np.ndarray, attribution: Attribution) -> Iterator[_Pair]:
    """The parameter with the weight, as it is or transposed; nothing where the shapes do not allow it."""
    views = list(_views(tensor.array.shape, array))
    made = is_made_by_tool(attribution)
    if not views:
        if made and _holds_same(tensor.array, array, _precision(tensor.array, array, made=made)):
            yield _Pair(name, _Relation.EQUAL, _NO_GAP)
        elif name in tensor.names and array.size != tensor.array.size and not made:
            yield _Pair(name, _Relation.LIKELY, _NO_COPY)
        return
    ours = sample_elements(tensor.array)
    if any(ours.dtype == view.dtype and np.array_equal(ours, view) for view in views):
        yield _Pair(name, _Relation.EQUAL, _NO_GAP)
        return
    precision = _precision(tensor.array, array, made=made)
    ours, views = precision.clip(ours), [precision.clip(view) for view in views]
    nearest = min((_gap(ours, view, precision) for view in views), key=lambda gap: gap.distance)
    named = name in tensor.names
    if nearest.equal or (made and _holds_same(tensor.array, array, precision)):
        relation, nearest = _Relation.EQUAL, _NO_GAP if not nearest.equal else nearest
    elif (_is_mixed(attribution) or made or not named) and any(_is_rescaled(ours, view, precision) for view in views):
        relation = _Relation.DERIVED
    else:
        relation = _Relation.LIKELY if _can_be_copy(attribution, array, named=named) else _Relation.UNKNOWN
    yield _Pair(name, relation, nearest)


def _precision(ours: np.ndarray, weight: np.ndarray, *, made: bool) -> Precision:
    """A tool may have rounded a weight and widened it again."""
    rounded = _FORMATS.get(detect_rounding(sample_elements(weight))) if made and weight.size else None
    return narrower(ours.dtype, weight.dtype) if rounded is None else rounded


def _holds_same(ours: np.ndarray, weight: np.ndarray, precision: Precision) -> bool:
    """Whether a weight holds the same numbers in some order, with or without zeros around them."""
    if not ours.size <= weight.size <= _MOST_SORTED:
        return False
    left, right = (np.sort(flat[flat != 0]) for flat in map(np.ravel, map(precision.clip, (ours, weight))))
    if left.size != right.size or left.size < 2 or left[0] == left[-1]:
        return False
    return _gap(left, right, precision).equal


def _views(shape: tuple[int, ...], weight: np.ndarray) -> Iterator[np.ndarray]:
    if weight.shape == shape:
        yield sample_elements(weight)
    if weight.ndim == 2 and weight.shape[::-1] == shape:
        yield sample_elements(weight).T


def _is_mixed(attribution: Attribution) -> bool:
    return any(item.kind is EvidenceKind.PARAMETER and item.source in _MIXED for item in attribution.evidence)


def _can_be_copy(attribution: Attribution, weight: np.ndarray, *, named: bool) -> bool:
    if _is_mixed(attribution) or is_made_by_tool(attribution):
        return False
    # Without its name a vector may be anything that was computed; a matrix in the module of a matrix is hardly that.
    is_matrix = sum(size > 1 for size in weight.shape) > 1
    return named or (is_matrix and len({call.path for call in attribution.owners}) == 1)


def _gap(ours: np.ndarray, weight: np.ndarray, precision: Precision) -> _Gap:
    same = (ours == weight) | (np.isnan(ours) & np.isnan(weight))
    difference = np.where(same, 0.0, np.abs(ours - weight))
    difference[np.isnan(difference)] = np.inf
    equal = bool(np.all(same | (difference <= precision.rounding_of(ours, weight))))
    return _Gap(equal, float(difference.max()), float(np.sqrt(np.mean(np.square(difference)))))


def _is_rescaled(ours: np.ndarray, weight: np.ndarray, precision: Precision) -> bool:
    """Whether each row, or each column, is a multiple of the parameter's: a norm was folded in, or a factor."""
    if min(ours.shape) < 2 or not (np.isfinite(ours).all() and np.isfinite(weight).all()):
        return False
    tolerance = _ROUNDING * precision.step
    return _are_parallel(ours, weight, tolerance) or _are_parallel(ours.T, weight.T, tolerance)


def _are_parallel(ours: np.ndarray, weight: np.ndarray, tolerance: float) -> bool:
    sizes, along = np.linalg.norm(ours, axis=1), np.einsum("ij,ij->i", ours, weight)
    if not (sizes > 0).all():
        return False
    factors = along / np.square(sizes)
    rest = np.linalg.norm(weight - factors[:, None] * ours, axis=1)
    return bool((rest <= tolerance * np.abs(factors) * sizes).all())


_NARROW: dict[int, str] = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
_TYPES = {name: helper.tensor_dtype_to_np_dtype(kind) for kind, name in _NARROW.items()}
# A single number with few bits may be exact.
_FEW = 16


def find_coarse_weights(file: ModelFile, provenance: Provenance) -> dict[str, Sample]:
    """By name, something as coarse: weights of a narrow type, and those that a tool rounded to one and widened."""
    formats = {tensor.name: _narrow_format(file, tensor, provenance) for tensor in file.proto.graph.initializer}
    return {name: sample(np.ones(1, _TYPES[narrow])) for name, narrow in formats.items() if narrow}


def _narrow_format(file: ModelFile, tensor: TensorProto, provenance: Provenance) -> str:
    if math.prod(tensor.dims) < _FEW:
        return ""
    if tensor.data_type != TensorProto.FLOAT:
        return _NARROW.get(tensor.data_type, "")
    attribution = provenance.initializers.get(tensor.name)
    if attribution is None or not is_made_by_tool(attribution):
        return ""
    return detect_rounding(sample_elements(initializer_array(file, tensor)))
