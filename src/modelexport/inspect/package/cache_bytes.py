"""Cache of a package: every state that is handed from step to step, the module that keeps it, and its bytes.

    past_key_values.0.key  (batch, 8, past_sequence, 64) float32   model.layers.0.self_attn   2 KB·batch·past_sequence

The module is that of the node which makes `present`: names of tensors say nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.types import Dims, dims_of, type_name
from modelexport.inspect.cost.propagation import bytes_of
from modelexport.inspect.cost.values import Axes
from modelexport.record.package import ComponentInfo, PackageInfo
from modelexport.record.polynomial import Polynomial, sizes_sum
from modelexport.record.provenance import Attribution


@dataclass(frozen=True)
class CacheTensor:
    """One state of generation.

    module  path of the module that makes `present`; None if that is not known
    shape   of the input `past`: sizes, and names of open axes; None if not even their number is known
    nbytes  of `past`, in terms of open axes; None if it is not known
    """

    component: str
    past: str
    present: str
    module: str | None
    dtype: str
    shape: Dims | None
    nbytes: Polynomial | None


@dataclass(frozen=True)
class ModuleCache:
    """All states of one module in one component: how many there are, and their bytes; None if not all are known."""

    component: str
    module: str | None
    tensors: int
    nbytes: Polynomial | None


def find_cache(
    info: PackageInfo, files: Mapping[str, TaggedFile], at: Mapping[str, int] | None = None
) -> tuple[CacheTensor, ...]:
    """The cache pairs of all components, in their order. `at`: sizes of open axes."""
    sizes = dict(at or {})
    with_cache = (component for component in info.components if component.cache)
    return tuple(
        tensor for component in with_cache for tensor in _find_tensors(component, files[component.name], sizes)
    )


def _find_tensors(component: ComponentInfo, file: TaggedFile, at: Mapping[str, int]) -> Iterator[CacheTensor]:
    inputs = {value.name: value for value in file.sized_proto.graph.input}
    shapes = Axes(file.sized_proto.graph.input, at).inputs
    # `past` goes into a Concat that may be fused away; the node that makes `present` is in every file.
    makers = {pair.present: file.graph.producers.get(pair.present) for pair in component.cache}
    answers = {present: file.provenance.recorded(maker.key) for present, maker in makers.items() if maker is not None}
    for pair in component.cache:
        dtype = file.types.dtype(pair.past)
        stated = None if pair.past not in inputs else dims_of(inputs[pair.past].type)
        yield CacheTensor(
            component.name,
            pair.past,
            pair.present,
            _find_keeper(pair.present, answers),
            type_name(dtype),
            stated or file.types.dims(pair.past),
            bytes_of(dtype, shapes.get(pair.past)),
        )


def _find_keeper(present: str, answers: Mapping[str, Attribution]) -> str | None:
    """The module whose state it is. Owners of all states of a file have a part in them, and keep none.

    present.0.key  layers.0.self_attn + rotary_emb     layers.0.self_attn
    present.1.key  layers.1.self_attn + rotary_emb     layers.1.self_attn
    """
    if present not in answers:
        return None
    answer, groups = answers[present], {frozenset(item.owners) for item in answers.values()}
    shared = frozenset.intersection(*groups) if len(groups) > 1 else frozenset()
    own = [owner for owner in answer.owners if owner not in shared]
    keeper = own[0] if len(own) == 1 else answer.ancestor
    return None if keeper is None else keeper.path


def sum_by_module(tensors: Iterable[CacheTensor]) -> tuple[ModuleCache, ...]:
    """One row for each module that keeps states, in the order of the first state of each."""
    groups: dict[tuple[str, str | None], list[CacheTensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.component, tensor.module), []).append(tensor)
    return tuple(
        ModuleCache(component, module, len(group), add_bytes(tensor.nbytes for tensor in group))
        for (component, module), group in groups.items()
    )


def add_bytes(sizes: Iterable[Polynomial | None]) -> Polynomial | None:
    """The sum; None if one of them is not known, because a sum without it would look like all."""
    known = list(sizes)
    return None if None in known else sizes_sum(size for size in known if size is not None)
