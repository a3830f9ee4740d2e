"""`SemanticQueryInterface`: nodes by what they are and where they stand. Nothing here needs torch or runs a model.

What a node is comes from its role and its operator, never from a name; see docs/roles.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path

from modelexport.api.query import query
from modelexport.api.reading import load
from modelexport.api.semantic_mapper import SemanticMapper
from modelexport.errors import UnknownName, UserError
from modelexport.queries.answer import select
from modelexport.queries.expression import Field, Operator, Term
from modelexport.queries.known import check_names
from modelexport.queries.values import Glob
from modelexport.record.hierarchy import ModuleCall, lineage_of
from modelexport.record.provenance import NodeEntry, Provenance
from modelexport.roles.operators import ACTIVATIONS, CONVOLUTIONS, NORMS

SELF, CROSS = "attention", "cross_attention"
_PROJECTIONS = frozenset(
    {
        *(f"{kind}.{part}" for kind in (SELF, CROSS) for part in ("query", "key", "value", "output")),
        *(f"{kind}.{part}" for kind in (SELF, CROSS) for part in ("qkv", "qk", "qv", "kv")),
        *(f"mlp.{part}" for part in ("up", "gate", "gate_up", "down")),
        "head",
        "projection",
    }
)

_TYPES: Mapping[str, Callable[[NodeEntry], bool]] = {
    "linear_projection": lambda node: node.attribution.role in _PROJECTIONS and node.op_type not in CONVOLUTIONS,
    "convolution": lambda node: node.attribution.role in ("convolution", "stem") or node.op_type in CONVOLUTIONS,
    "normalization": lambda node: node.attribution.role == "norm" or node.op_type in NORMS,
    "activation": lambda node: node.attribution.role == "mlp.activation" or node.op_type in ACTIVATIONS,
    "embedding": lambda node: node.attribution.role == "embedding",
    "position": lambda node: node.attribution.role == "position",
    "attention": lambda node: node.attribution.semantic_type in (SELF, CROSS),
    "self_attention": lambda node: node.attribution.semantic_type == SELF,
    "cross_attention": lambda node: node.attribution.semantic_type == CROSS,
    "mlp": lambda node: node.attribution.semantic_type == "mlp",
    "residual": lambda node: node.attribution.role == "residual",
    "stem": lambda node: node.attribution.role == "stem",
    "head": lambda node: node.attribution.role == "head",
}
MODULE_TYPES = tuple(_TYPES)


class SemanticQueryInterface:
    """Questions about the nodes of one ONNX model. All answers are in file order.

    source  a `SemanticMapper`, a `Provenance`, or the path of a file that was exported
    """

    def __init__(self, source: SemanticMapper | Provenance | str | Path) -> None:
        if isinstance(source, SemanticMapper):
            self.provenance = source.provenance
        else:
            self.provenance = source if isinstance(source, Provenance) else load(source)

    @cached_property
    def layer_ids(self) -> tuple[int, ...]:
        """The numbers of the repeated blocks. An encoder and a decoder are each numbered from 0."""
        found = {node.attribution.layer_id for node in self.provenance.nodes.values()}
        return tuple(sorted(number for number in found if number is not None))

    def get_attention_components(
        self, layer_id: int | None = None, module: str | None = None
    ) -> dict[str, tuple[NodeEntry, ...]]:
        """The parts of attention, each with its nodes: `query`, `key`, `value`, `scores`, `softmax`, `output`, ….

        Parts of cross-attention are `cross_attention.query` and so on; a node that is all of an attention is
        `attention` or `cross_attention`. Empty where there is no attention.

        layer_id  one layer alone
        module    what is inside this module alone: tells layer 0 of an encoder from layer 0 of a decoder
        """
        nodes = self._all() if module is None else self.find_nodes_by_module(module)
        if layer_id is not None:
            nodes = self._in_layer(nodes, layer_id)
        found: dict[str, list[NodeEntry]] = {}
        for node in filter(_TYPES["attention"], nodes):
            found.setdefault(_component(node), []).append(node)
        return {component: tuple(group) for component, group in found.items()}

    def find_nodes_by_module_type(self, module_type: str) -> tuple[NodeEntry, ...]:
        """Nodes by what they are (`MODULE_TYPES`), or by a class of the model with everything inside: `BertLayer`."""
        if module_type in _TYPES:
            return tuple(filter(_TYPES[module_type], self._all()))
        classes = dict.fromkeys(part.class_name for part in self.provenance.hierarchy.modules.values())
        if module_type not in classes:
            raise UnknownName("module type", module_type, [*_TYPES, *classes])
        return self._inside_class(module_type)

    def find_nodes_by_module(self, module: str) -> tuple[NodeEntry, ...]:
        """What was issued inside a module: all of its calls, or the one in `block#2`; `""` is the model."""
        inside = self.provenance.issued_within(module)
        return tuple(node for node in self._all() if inside(node.attribution))

    def find_nodes_by_layer(self, layer_id: int) -> tuple[NodeEntry, ...]:
        return self._in_layer(self._all(), layer_id)

    def find_nodes_by_role(self, role: str) -> tuple[NodeEntry, ...]:
        """A role or a pattern of roles: `attention.query`, `mlp.*`."""
        term = Term(Field.ROLE, Operator.IS, Glob(role))
        check_names(term, self.provenance)
        return select(term, self.provenance)

    def query(self, text: str) -> tuple[NodeEntry, ...]:
        """The nodes that a query such as `layer=0 & role=attention.*` means; see docs/query.md."""
        return query(self.provenance, text)

    def _all(self) -> tuple[NodeEntry, ...]:
        return tuple(self.provenance.nodes.values())

    def _in_layer(self, nodes: tuple[NodeEntry, ...], layer_id: int) -> tuple[NodeEntry, ...]:
        if not self.layer_ids:
            raise UserError("this model has no layers: no block of it is repeated", "Leave the layer out.")
        if layer_id not in self.layer_ids:
            raise UnknownName("layer", str(layer_id), map(str, self.layer_ids))
        return tuple(node for node in nodes if node.attribution.layer_id == layer_id)

    def _inside_class(self, class_name: str) -> tuple[NodeEntry, ...]:
        hierarchy = self.provenance.hierarchy

        @cache
        def inside(call: ModuleCall) -> bool:
            # Lists are never called: only the paths below them tell that something is inside of one.
            around = {path for above in hierarchy.stack(call) for path in lineage_of(above.path)}
            return any(
                path in hierarchy.modules and hierarchy.modules[path].class_name == class_name for path in around
            )

        return tuple(node for node in self._all() if any(map(inside, node.attribution.owners)))


def _component(node: NodeEntry) -> str:
    """Self-attention is what people mean by attention: its parts go by their bare names."""
    found = node.attribution
    return found.component if found.semantic_type == SELF and found.component else found.role
