"""Asked and done: what a file was to be, held against what the file is, after it was written.

    export --opset 3                       Unmet("--opset 3", "the file has opset 18")
    quantize --include op=MatMul           Unmet("--include op=MatMul", "none of its 2 nodes was quantized")
    run-tool --tool opset:99               Unmet("opset:99", "the file has opset 21")

Exporters, converters and quantizers often do something else than they were told, without a word. Nothing that they
return is believed here: everything is read from the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx

from modelexport.api.options import ExportOptions
from modelexport.errors import some_of
from modelexport.graph.file.external import is_external
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.index import FLOATS, Graph, Node
from modelexport.graph.protos import find_attribute
from modelexport.graph.quantized import NARROW, QUANTIZING, QuantizedNodes, activation_types, count_narrow, weight_types
from modelexport.graph.types import input_dims
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.results.files import Unmet
from modelexport.record.tags import TORCH_NN_EXCEPTIONS, matches_any

if TYPE_CHECKING:
    from modelexport.transform.tools.quantizers import Quantization
    from modelexport.transform.tools.tool import Tool

_FLOAT_NAMES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
    onnx.TensorProto.DOUBLE: "float64",
}
_DEFAULT_DOMAINS = ("", "ai.onnx")
# Of all weights in float, in bytes: one that is smaller and stays so is not worth a word.
_WORTH_A_NOTE = 0.01


def check_export(written: TaggedFile, options: ExportOptions, hierarchy: Hierarchy) -> Iterator[Unmet]:
    """What an exporter made of the options that are about the file."""
    opset = find_opset(written.proto)
    if options.opset is not None and opset != options.opset:
        yield Unmet(f"--opset {options.opset}", f"the file has opset {opset}")
    if options.dtype is not None and options.dtype in _FLOAT_NAMES.values():
        yield from _check_float_type(written.graph, f"--dtype {options.dtype}", options.dtype)
    if options.static:
        open_axes = [name for name, dims in _fed_dims(written) if any(not isinstance(size, int) for size in dims)]
        if open_axes:
            yield Unmet("--static", f"axes of {some_of(open_axes)} are dynamic")
    if options.external_data and not any(map(is_external, written.proto.graph.initializer)):
        yield Unmet("--external-data", "all weights are in the file itself: none is large enough to be beside it")
    yield from _check_policy(options, hierarchy)


def find_opset(proto: onnx.ModelProto) -> int:
    return next((item.version for item in proto.opset_import if item.domain in _DEFAULT_DOMAINS), 1)


def _fed_dims(written: TaggedFile) -> Iterator[tuple[str, Sequence[object]]]:
    fed = {*written.graph.fed_inputs}
    for value in written.proto.graph.input:
        dims = input_dims(value)
        if value.name in fed and dims is not None:
            yield value.name, dims


def _check_float_type(graph: Graph, asked: str, wanted: str) -> Iterator[Unmet]:
    """By bytes: some tables and norms stay as they are in a model that is narrower as a whole."""
    held: Counter[str] = Counter()
    for tensor in graph.initializers.values():
        if tensor.dtype in FLOATS and len(tensor.shape) > 1:
            held[_FLOAT_NAMES.get(tensor.dtype, str(tensor.dtype))] += tensor.nbytes
    if held and held.most_common(1)[0][0] != wanted:
        parts = ", ".join(f"{count:,} bytes in {name}" for name, count in held.most_common())
        yield Unmet(asked, f"most weights are in another type: {parts}")


def _check_policy(options: ExportOptions, hierarchy: Hierarchy) -> Iterator[Unmet]:
    """Patterns of a tag policy that are about no module. The classes that torch's own are kept of by default may be."""
    policy, modules = options.policy, hierarchy.modules.values()
    listed = () if policy.torch_nn_exceptions == TORCH_NN_EXCEPTIONS else policy.torch_nn_exceptions
    for option, patterns in (("--keep", policy.keep), ("--drop", policy.drop), ("--torch-nn-exception", listed)):
        for pattern in patterns:
            if not any(matches_any(module, (pattern,)) for module in modules):
                yield Unmet(f"{option} {pattern}", "the model has no such module")


def check_tool(before: TaggedFile, after: TaggedFile, tool: Tool, option: str) -> Iterator[Unmet]:
    """What a converter or a quantizer made. Optimizers have no goal that a file can be held against."""
    asked = f"{tool.name}:{option}" if option else tool.name
    if option.isdecimal() and find_opset(after.proto) != int(option):
        yield Unmet(asked, f"the file has opset {find_opset(after.proto)}")
    if tool.number_type in _FLOAT_NAMES.values():
        yield from _check_float_type(after.graph, asked, tool.number_type)
    elif tool.number_type and count_narrow(after.graph) <= count_narrow(before.graph):
        yield Unmet(asked, NOTHING_QUANTIZED)


NOTHING_QUANTIZED = (
    "nothing was quantized: ONNX Runtime found no node that it could; there is none of a kind that it quantizes, "
    "or they are quantized already or left out"
)


@dataclass(frozen=True)
class AskedQuantization:
    """
    settings   what the quantizer was told
    include    by query: keys of the nodes that it means; empty if nothing was asked for
    exclude    the same
    """

    settings: Quantization
    include: Mapping[str, frozenset[str]]
    exclude: Mapping[str, frozenset[str]]

    def chosen(self, graph: Graph) -> list[Node]:
        """Nodes that were to be quantized if they can be."""
        included, excluded = (frozenset[str]().union(*sides.values()) for sides in (self.include, self.exclude))
        op_types = self.settings.op_types
        return [
            node
            for node in graph.nodes
            if node.key not in excluded
            and (not self.include or node.key in included)
            and (not op_types or node.op_type in op_types)
        ]


class QuantizationCheck:
    """What a quantizer made of a file, against what it was asked for."""

    def __init__(self, before: TaggedFile, after: TaggedFile, asked: AskedQuantization) -> None:
        self._before, self._after, self._asked = before.graph, after, asked
        self._nodes = QuantizedNodes(before.graph, after.graph)
        self.is_idle = count_narrow(after.graph) <= count_narrow(before.graph)

    def find_unmet(self) -> Iterator[Unmet]:
        settings = self._asked.settings
        yield from self._check_queries()
        if self.is_idle:  # see `check_tool`
            return
        for name in settings.op_types:
            of_type = [node for node in self._asked.chosen(self._before) if node.op_type == name]
            if of_type and not any(map(self._nodes.is_quantized, of_type)):
                yield Unmet(f"--op-types {name}", f"none of {len(of_type)} nodes was quantized")
        yield from self._check_types()

    def _check_queries(self) -> Iterator[Unmet]:
        by_key = self._before.by_key
        for query, keys in self._asked.include.items():
            if not any(self._nodes.is_quantized(by_key[key]) for key in keys):
                yield Unmet(f"--include {query}", f"none of its {len(keys)} nodes was quantized")
        for query, keys in self._asked.exclude.items():
            narrow = [by_key[key].name or key for key in keys if self._nodes.has_narrow_weights(by_key[key])]
            if narrow:
                yield Unmet(f"--exclude {query}", f"weights were quantized all the same: {some_of(sorted(narrow))}")

    def _check_types(self) -> Iterator[Unmet]:
        settings, after = self._asked.settings, self._after
        weights = weight_types(self._before, after.proto, after.graph)
        yield from _check_type("--weight-type", settings.weight_type, weights)
        yield from _check_type("--activation-type", settings.activation_type, activation_types(after.graph))
        if settings.per_channel and weights and not self._has_channel_scales():
            yield Unmet("--per-channel", "each weight has a single scale")
        if settings.is_blockwise:
            sizes = {item.i for node in after.proto.graph.node if (item := find_attribute(node, "block_size"))}
            if sizes and sizes != {settings.block}:
                yield Unmet(
                    f"--block-size {settings.block}", f"blocks of {some_of([*map(str, sorted(sizes))])} weights"
                )

    def _has_channel_scales(self) -> bool:
        """Zero points are stored in few bits, one for each channel."""
        new = (item for name, item in self._after.graph.initializers.items() if name not in self._before.initializers)
        return any(item.dtype in NARROW and len(item.shape) == 1 and item.shape[0] > 1 for item in new)

    def note_float_nodes(self) -> Iterator[str]:
        """Of what a query includes, nodes that no quantizer took: a Tanh beside the MatMul that was meant."""
        by_key = self._before.by_key
        for query, keys in self._asked.include.items():
            left = Counter(node.op_type for key in keys if not self._nodes.is_quantized(node := by_key[key]))
            if left and left.total() < len(keys):
                kinds = some_of([f"{op_type} {count}" for op_type, count in left.most_common()])
                yield f"--include {query}: {len(keys) - left.total()} of {len(keys)} nodes were quantized, not: {kinds}"

    def note_float_weights(self) -> Iterator[str]:
        """Weights that stayed in float though nobody asked for it: experts, for instance, that no quantizer knows."""
        weights = {name: item for name, item in self._before.initializers.items() if item.dtype in FLOATS}
        every = sum(item.nbytes for item in weights.values())
        meant = {node.key for node in self._asked.chosen(self._before)}
        left = {
            name: item
            for name, item in weights.items()
            if len(item.shape) > 1
            and item.nbytes > _WORTH_A_NOTE * every
            and self._stayed_float(name)
            and any(node.key in meant for node in self._before.consumers.get(name, ()))
        }
        if self.is_idle or not left:
            return
        size, deep = sum(item.nbytes for item in left.values()), sum(len(item.shape) > 2 for item in left.values())
        kinds = Counter(node.op_type for name in left for node in self._before.consumers[name])
        axes = f", {deep} with more than two axes" if deep else ""
        yield (
            f"{size / every:.0%} of the weights, in bytes, stayed in float and were not excluded: {len(left)} that "
            f"{', '.join(kinds)} read{axes} ({some_of(sorted(left))})"
        )

    def _stayed_float(self, name: str) -> bool:
        after = self._after.graph.initializers.get(name)
        readers = self._after.graph.consumers.get(name, ())
        # A quantizer that is run at run time reads floats, and whoever reads these reads few bits.
        return after is not None and after.dtype in FLOATS and any(node.op_type not in QUANTIZING for node in readers)


def _check_type(option: str, wanted: str, held: Counter[str]) -> Iterator[Unmet]:
    if wanted and held and held.most_common(1)[0][0] != wanted:
        yield Unmet(f"{option} {wanted}", f"they are {' and '.join(name for name, _ in held.most_common())}")
