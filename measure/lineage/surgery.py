"""Graph surgery: what people do to a file by hand with `onnx`, in the form of tools.

merge         a model behind it that hands its first output on; every name gets a prefix
merge_copy    a second copy of the file beside it, with inputs and outputs of its own
merge_shared  the same, but both copies read the same inputs
pack_qkv      projections of one value packed into one product, and cut into pieces behind it

    x ──► MatMul(q) ──► a                        x ──► MatMul(q, k, v) ──► Split ──► a, b, c
    x ──► MatMul(k) ──► b
    x ──► MatMul(v) ──► c
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, compose, helper, numpy_helper, shape_inference, utils

from modelexport.graph.index import index_model, subgraphs_with_ids
from modelexport.transform.tools.tool import Job, read_whole, write_whole

# What merging puts before every name: of the file itself, and of the second copy.
PREFIX, COPY_PREFIX = "before_", "copy_"
_FEWEST = 2


def original_name(value: str) -> str:
    """The name that a value had before its file was merged with another."""
    return value.removeprefix(PREFIX).removeprefix(COPY_PREFIX)


def extract(job: Job) -> None:
    """Everything up to a value in the middle: what comes behind it is cut off."""
    model = shape_inference.infer_shapes(read_whole(job.source))
    graph = index_model(model)
    typed = {value.name for value in model.graph.value_info if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    made = [node.key for node in graph.nodes if node.key in graph.computed and node.key in typed]
    inputs = [value.name for value in model.graph.input]
    cut = utils.Extractor(model).extract_model(inputs, [made[len(made) * 2 // 3]])
    write_whole(cut, job.target)


def merge(job: Job) -> None:
    model = read_whole(job.source)
    last = model.graph.output[0]
    taken = helper.make_value_info("taken", last.type)
    given = helper.make_value_info("given", last.type)
    graph = helper.make_graph([helper.make_node("Identity", ["taken"], ["given"])], "behind", [taken], [given])
    behind = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    merged = compose.merge_models(model, behind, [(last.name, "taken")], prefix1=PREFIX, prefix2="behind_")
    write_whole(merged, job.target)


def merge_copy(job: Job) -> None:
    model = read_whole(job.source)
    merged = compose.merge_models(model, model, [], prefix1=PREFIX, prefix2=COPY_PREFIX)
    write_whole(merged, job.target)


def merge_shared(job: Job) -> None:
    model = read_whole(job.source)
    merged = compose.merge_models(model, model, [], prefix1=PREFIX, prefix2=COPY_PREFIX)
    stored = {tensor.name for tensor in model.graph.initializer}
    shared = [value.name for value in model.graph.input if value.name not in stored]
    _replace_inputs(merged.graph, {COPY_PREFIX + name: PREFIX + name for name in shared})
    kept = [value for value in merged.graph.input if value.name.removeprefix(COPY_PREFIX) not in shared]
    inputs = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
    del merged.graph.input[:]
    merged.graph.input.extend(inputs)
    write_whole(merged, job.target)


def _replace_inputs(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [names.get(value, value) for value in node.input]
        for _, body in subgraphs_with_ids(node, ""):
            _replace_inputs(body, names)


def pack_qkv(job: Job) -> None:
    model = read_whole(job.source)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = list(model.graph.node)
    for number, group in enumerate(_projections(nodes, weights)):
        packed = _pack([weights[node.input[1]] for node in group], f"packed_weight_{number}")
        sizes = np.array([weights[node.input[1]].dims[1] for node in group], dtype=np.int64)
        model.graph.initializer.extend([packed, numpy_helper.from_array(sizes, f"packed_sizes_{number}")])
        product = helper.make_node("MatMul", [group[0].input[0], packed.name], [f"packed_{number}"])
        outputs = [node.output[0] for node in group]
        split = helper.make_node("Split", [product.output[0], f"packed_sizes_{number}"], outputs, axis=-1)
        place = nodes.index(group[0])
        nodes[place:place] = [product, split]
        nodes = [node for node in nodes if not any(node is packed_node for packed_node in group)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    write_whole(model, job.target)


def _projections(nodes: Iterable[onnx.NodeProto], weights: dict[str, TensorProto]) -> Iterator[list[onnx.NodeProto]]:
    """Products of one value with matrices, each time that there are several of them."""
    by_value: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        if node.op_type == "MatMul" and node.input[1] in weights and len(weights[node.input[1]].dims) == _FEWEST:
            by_value.setdefault(node.input[0], []).append(node)
    yield from (group for group in by_value.values() if len(group) >= _FEWEST)


def _pack(tensors: Iterable[TensorProto], name: str) -> TensorProto:
    return numpy_helper.from_array(np.concatenate(list(map(numpy_helper.to_array, tensors)), axis=1), name)
