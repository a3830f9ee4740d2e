"""Exporter metadata: modules that an exporter wrote on each node, paths and classes.

    pkg.torch.onnx.name_scopes      ['', 'encoder', 'encoder.fc', 'linear_3']
    pkg.torch.onnx.class_hierarchy  ['m.Net', 'm.Encoder', 'torch.nn.modules.linear.Linear', 'aten.linear.default']
    winml.hierarchy.tag             /BertModel/BertEncoder/BertLayer.0/BertAttention
    namespace                       : m.Net/encoder: m.Encoder/encoder.fc: torch…Linear, or model/encoder/fc

Torch's lists end with the operator. A stack that does not begin with the root ('') is no stack of modules: torch writes
`_empty_nn_module_stack_from_metadata_hook` where it lost it.
https://github.com/pytorch/pytorch/blob/main/torch/onnx/_internal/exporter/_core.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from modelexport.attribute.scopes import SCOPES_KEY, parse_list
from modelexport.attribute.sources.reading import MOST_LEVELS, Reading, is_module_path
from modelexport.graph.index import Graph, Node
from modelexport.record.hierarchy import ROOT
from modelexport.record.provenance import Confidence

DYNAMO = "torch dynamo metadata"
WINML = "winml.hierarchy.tag"
NAMESPACE = "namespace metadata"
_CLASSES_KEY = "pkg.torch.onnx.class_hierarchy"
_WINML_KEY = "winml.hierarchy.tag"
_NAMESPACE_KEY = "namespace"

# A module stack: pairs of path and qualified class, root first; the class is empty where it is not written.
_Stack = tuple[tuple[str, str], ...]


def read_dynamo(graph: Graph) -> Reading | None:
    return _read_stacks(graph, DYNAMO, SCOPES_KEY, _dynamo_stack)


def read_winml(graph: Graph) -> Reading | None:
    return _read_stacks(graph, WINML, _WINML_KEY, lambda node: _tag_stack(node.metadata[_WINML_KEY]))


def read_namespaces(graph: Graph) -> Reading | None:
    return _read_stacks(graph, NAMESPACE, _NAMESPACE_KEY, lambda node: _namespace_stack(node.metadata[_NAMESPACE_KEY]))


def _read_stacks(graph: Graph, source: str, key: str, stack_of: Callable[[Node], _Stack]) -> Reading | None:
    nodes: dict[str, tuple[str, ...]] = {}
    names: dict[str, dict[str, None]] = {}
    for node in graph.nodes:
        stack = stack_of(node) if key in node.metadata else ()
        if stack and all(is_module_path(path) for path, _ in stack):
            nodes[node.key] = (stack[-1][0],)
            for path, name in stack:
                if name.isprintable() and name:
                    names.setdefault(path, {})[name] = None
    # A module has one class: of a path with several, the class is not known.
    classes = {path: next(iter(several)) for path, several in names.items() if len(several) == 1}
    return Reading(source, Confidence.STRONG, nodes, classes=classes) if nodes else None


def _dynamo_stack(node: Node) -> _Stack:
    paths, classes = (parse_list(node.metadata.get(key, ""))[:-1] for key in (SCOPES_KEY, _CLASSES_KEY))
    if paths[:1] != (ROOT,):
        return ()
    # Lists of other lengths do not belong together: the paths alone are believed.
    return tuple(zip(paths, classes if len(classes) == len(paths) else ("",) * len(paths), strict=True))


def _tag_stack(tag: str) -> _Stack:
    """`/BertModel/BertEncoder/BertLayer.0`: parts are classes; what distinguishes modules of one class is behind a dot.

    The path is made of the parts themselves, as the tag has no attribute names.
    """
    parts = [part for part in tag.split("/") if part]
    return tuple(zip(_dotted_prefixes(parts[1:]), (part.partition(".")[0] for part in parts), strict=False))


def _namespace_stack(namespace: str) -> _Stack:
    """Torch joins pairs `path: class`, the operator last; other tools join plain names, the innermost module last."""
    parts = namespace.split("/")
    if ": " in parts[0]:
        pairs = [part.partition(": ")[::2] for part in parts]
        return tuple(pairs[:-1]) if pairs[0][0] == ROOT else ()
    return tuple((path, "") for path in _dotted_prefixes([part.replace(".", "_") for part in parts if part]))


def _dotted_prefixes(names: Sequence[str]) -> Iterator[str]:
    """The root, the first name, the first two, …; nothing for more levels than modules have."""
    depths = range(len(names) + 1) if len(names) <= MOST_LEVELS else ()
    return (".".join(names[:depth]) for depth in depths)
