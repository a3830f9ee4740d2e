"""Classes for programs that hold an exported model: exporters that are set up once, a mapper from ONNX nodes to modules
of the live PyTorch model, and a query interface by layer, component and kind of module.

    onnx_model, mapper = export_hf_model_with_semantics(model, inputs, "bert.onnx")
    mapper.get_hf_module_for_onnx_node(onnx_model.graph.node[7])           # the live nn.Module
    SemanticQueryInterface(mapper).get_attention_components(layer_id=0)    # {"query": (…), "key": (…), …}

They add no logic of their own: `export`, `load` and `query` do the work. What a node is comes from its role and its
operator, never from a name; see docs/roles.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

import onnx

from modelexport.api.export import export
from modelexport.api.options import EXPORTERS, ensure_known
from modelexport.api.read import load, query
from modelexport.attribute import strategies
from modelexport.attribute.resolve import build_provenance
from modelexport.attribute.roles.assign import assign_roles
from modelexport.errors import ExportFailed, ExtraMissing, UnknownName, UserError
from modelexport.graph.index import MAIN, edges_of, index_model, node_key, walk_nodes
from modelexport.graph.operators import ACTIVATIONS, CONVOLUTIONS, NORMALIZATIONS
from modelexport.graph.protos import operator_name
from modelexport.inspect.query.answer import check_names, select
from modelexport.inspect.query.expression import Glob, Operator, QueryField, Term
from modelexport.record.hierarchy import Hierarchy, ModuleCall, lineage_of
from modelexport.record.provenance import Attribution, NodeEntry, Origin, Provenance
from modelexport.record.results.files import ExportResult
from modelexport.record.signals import Signals
from modelexport.record.tags import TorchNN

if TYPE_CHECKING:
    import torch

# torch's refusals go on for pages; the first lines say what it did not like.
_LONGEST_REASON = 300
SELF, CROSS = "attention", "cross_attention"
# Roles of matrix products with trained weights. Exporters fuse some of them (`qkv`, `gate_up`), hence the long list.
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
    "convolution": lambda node: node.attribution.role in ("convolution", "stem"),
    "normalization": lambda node: node.attribution.role == "norm",
    "activation": lambda node: node.attribution.role == "mlp.activation",
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
# Types that an operator is enough for.
_OPERATORS: Mapping[str, Collection[str]] = {
    "convolution": CONVOLUTIONS,
    "normalization": NORMALIZATIONS,
    "activation": ACTIVATIONS,
}
MODULE_TYPES = tuple(_TYPES)


def export_hf_model_with_semantics(
    model: torch.nn.Module,
    inputs: object,
    output: str | Path,
    *,
    exporter: str = "dynamo",
    strategy: str = "enhanced_semantic",
    torch_nn_exceptions: Sequence[str] | None = None,
) -> tuple[onnx.ModelProto, SemanticMapper]:
    """Export a live model; the ONNX model as `onnx.load` reads it, and a mapper from its nodes to the live modules.

    inputs  as for `export`; None makes some from the model's configuration
    The mapper's `result` is what `export` returns: the files, the notes, the comparison with PyTorch. For the other
    options of an export: `SemanticMapper(onnx.load(path), export(model, path, …).provenance, model)`.
    """
    if isinstance(model, str | Path):
        raise UserError(
            f"{str(model)!r} is not a live model, and live modules are what this function is for",
            "Load the model first, or use export(model, output), which takes folders and hub ids too.",
        )
    result = HierarchyExporter(strategy, torch_nn_exceptions, exporter).export(model, inputs, output)
    onnx_model = onnx.load(result.path)  # noqa: TID251 - the caller gets the whole model, weights included
    return onnx_model, SemanticMapper(onnx_model, result.provenance, model, result=result)


@dataclass(frozen=True)
class HierarchyExporter:
    """Exports models, each with the same strategy and the same tags.

    torch_nn_exceptions  the classes of torch.nn that appear in tags, instead of `TORCH_NN_EXCEPTIONS`; an empty list
                         for none of them. Attributions always go to the exact module.
    """

    strategy: str = "enhanced_semantic"
    torch_nn_exceptions: Sequence[str] | None = None
    exporter: str = "dynamo"
    opset: int | None = None

    def __post_init__(self) -> None:
        # Here and not in `export`: whoever sets up an exporter hears of it before the first model is loaded.
        ensure_known("strategy", self.strategy, strategies.NAMES)
        ensure_known("exporter", self.exporter, EXPORTERS)
        _check_names(self.torch_nn_exceptions)

    def export(self, model: torch.nn.Module | str | Path, inputs: object, output: str | Path) -> ExportResult:
        """Model and inputs as for `modelexport.export`; `None` makes inputs from the model's configuration."""
        exceptions = self.torch_nn_exceptions
        return export(
            model,
            output,
            inputs=inputs,
            exporter=self.exporter,
            strategy=self.strategy,
            opset=self.opset,
            # `torch_nn_exception=()` means the usual ones there, so none of them has a word of its own.
            torch_nn=TorchNN.EXCEPTIONS if exceptions is None or exceptions else TorchNN.NONE,
            torch_nn_exception=tuple(exceptions or ()),
        )


@dataclass(frozen=True)
class UniversalHierarchyExporter:
    """Exports whatever can be exported: attributed by FX, and by `htp` where FX cannot trace the model.

    The result's `strategy` says which of them it was, its `notes` say why.

    exporter  None is dynamo; for what dynamo cannot export transformers, and TorchScript last
    """

    torch_nn_exceptions: Sequence[str] | None = None
    exporter: str | None = None
    opset: int | None = None

    def __post_init__(self) -> None:
        if self.exporter is not None:
            ensure_known("exporter", self.exporter, EXPORTERS)
        _check_names(self.torch_nn_exceptions)

    def export(self, model: torch.nn.Module | str | Path, inputs: object, output: str | Path) -> ExportResult:
        """Model and inputs as for `modelexport.export`; `None` makes inputs from the model's configuration."""
        if self.exporter is not None:
            return self._by(self.exporter).export(model, inputs, output)
        refusals: list[str] = []
        # TorchScript last: graphs of the others name modules node by node, its own only by scope.
        for exporter in EXPORTERS:
            try:
                result = self._by(exporter).export(model, inputs, output)
            except (ExportFailed, ExtraMissing) as error:
                # Without transformers, or with one that has no exporter, there is one exporter less.
                if isinstance(error, ExtraMissing) and exporter != "transformers":
                    raise
                refusals.append(error.message)
                continue
            if not refusals:
                return result
            why = f"exported by {exporter}: {shorten(refusals[0], _LONGEST_REASON, placeholder=' …')}"
            return replace(result, notes=(why, *result.notes))
        raise ExportFailed("\n".join(refusals), "No exporter is left to try.")

    def _by(self, exporter: str) -> HierarchyExporter:
        return HierarchyExporter("fx_graph", self.torch_nn_exceptions, exporter, self.opset)


def _check_names(torch_nn_exceptions: Sequence[str] | None) -> None:
    """A string is a sequence of strings to Python: "Linear" would be six classes of one letter."""
    if isinstance(torch_nn_exceptions, str):
        raise UserError(
            f"torch_nn_exceptions is a list of class names, not one name: {torch_nn_exceptions!r}",
            f"Give [{torch_nn_exceptions!r}].",
        )


class SemanticMapper:
    """Maps the nodes of an ONNX model to modules.

    onnx_model  the model, with or without its weights
    hierarchy   the modules of the PyTorch model, to judge the nodes by with the strategy `enhanced_semantic`;
                or a record (`ExportResult.provenance`, `mx.load(path)`), to answer from as it is
    model       the live PyTorch model; only what returns live modules needs it
    result      the export that the ONNX model came from, where one did: its notes and its comparison with PyTorch
    """

    def __init__(
        self,
        onnx_model: onnx.ModelProto,
        hierarchy: Hierarchy | Provenance,
        model: torch.nn.Module | None = None,
        *,
        result: ExportResult | None = None,
    ) -> None:
        self.onnx_model, self.result = onnx_model, result
        self._known, self._model = hierarchy, model
        if model is not None:
            _check_fits(model, hierarchy.hierarchy if isinstance(hierarchy, Provenance) else hierarchy)

    @cached_property
    def provenance(self) -> Provenance:
        """The record, or one that is judged at the first question: whoever asks nothing does not wait for it."""
        return self._known if isinstance(self._known, Provenance) else _judge(self.onnx_model, self._known)

    def map_all_nodes(self) -> dict[str, Attribution]:
        """The attribution of every node, by node name; by node key where the name is missing or not the only one."""
        nodes = self.provenance.nodes
        uses = Counter(entry.name for entry in nodes.values())
        # ONNX lets nodes go without a name, and does not ask for unique ones.
        unique = {key: entry.name if entry.name and uses[entry.name] == 1 else key for key, entry in nodes.items()}
        return {unique[key]: entry.attribution for key, entry in nodes.items()}

    def get_node_entry(self, node: onnx.NodeProto | str) -> NodeEntry:
        """The node with its attribution. A node is given as itself, by its name or by its key."""
        if not isinstance(node, (str, onnx.NodeProto)):
            raise UserError(f"{node!r} is not a node", "Give a NodeProto, a node's name or its key.")
        return self.provenance.entry(node if isinstance(node, str) else self._key(node))

    def get_node_attribution(self, node: onnx.NodeProto | str) -> Attribution:
        return self.get_node_entry(node).attribution

    def get_hf_module_for_onnx_node(self, node: onnx.NodeProto | str) -> torch.nn.Module | None:
        """The live module that issued a node; for a node with several owners, the module that encloses them all.

        None if nobody is known to have issued it: `get_node_attribution(node).reason` says why.
        """
        ancestor = self.get_node_attribution(node).ancestor
        model = self._live_model()
        return None if ancestor is None else model.get_submodule(ancestor.path)

    def get_hf_modules_for_onnx_node(self, node: onnx.NodeProto | str) -> tuple[torch.nn.Module, ...]:
        """The live modules of all owners: one, several for a fused or shared node, or none."""
        owners = self.get_node_attribution(node).owners
        model = self._live_model()
        return tuple(model.get_submodule(path) for path in dict.fromkeys(owner.path for owner in owners))

    def _live_model(self) -> torch.nn.Module:
        """Raises for a mapper without one, also where the answer would be None: the mistake is in the setup."""
        if self._model is None:
            raise UserError(
                "this mapper has no PyTorch model, so it cannot return a live module",
                "Make it with SemanticMapper(onnx_model, hierarchy, model=model); "
                "get_node_attribution(node).module is the module's path and needs no model.",
            )
        return self._model

    def _key(self, node: onnx.NodeProto) -> str:
        """The key of a node of this model. A node does not know its graph: what it is told by is its own content."""
        operator = (node.op_type, node.domain)
        candidates = self._by_output.get(_local(node), ())
        same = [(key, proto) for key, proto in candidates if (proto.op_type, proto.domain) == operator]
        # Attributes and weights are compared only if they must be: they may be large.
        if len(same) > 1:
            same = [(key, proto) for key, proto in same if proto == node]
        if len(same) > 1:
            raise UserError(
                f"{len(same)} nodes of different graphs are all like {node.name or _local(node)!r}",
                f"Give the key of the one that is meant: {', '.join(key for key, _ in same)}.",
            )
        if not same:
            names = [entry.name or entry.key for entry in self.provenance.nodes.values()]
            raise UnknownName("node", node.name or _local(node), names)
        return same[0][0]

    @cached_property
    def _by_output(self) -> Mapping[str, list[tuple[str, onnx.NodeProto]]]:
        """Nodes of every graph by the name of their first output: unique in a graph, not in a model."""
        protos = defaultdict(list)
        for key, proto in walk_nodes(self.onnx_model):
            protos[_local(proto)].append((key, proto))
        return protos


def _judge(onnx_model: onnx.ModelProto, hierarchy: Hierarchy) -> Provenance:
    """By names alone: neither the model nor a run is at hand, only its modules."""
    graph = index_model(onnx_model)
    claims = strategies.enhanced_semantic(graph, hierarchy, Signals())
    by_node, by_weight = strategies.claims_by_node(claims), strategies.claims_by_initializer(claims)
    origin = Origin(strategies.ENHANCED_SEMANTIC, "unknown", graph.fingerprint)
    provenance = build_provenance(graph, hierarchy, by_node, by_weight, origin)
    return assign_roles(graph, replace(provenance, edges=edges_of(graph)))


def _check_fits(model: torch.nn.Module, hierarchy: Hierarchy) -> None:
    """A model that is another one than was recorded would answer with wrong modules, and nobody would notice."""
    classes = {path: type(part).__name__ for path, part in model.named_modules()}
    for path, module in hierarchy.modules.items():
        if classes.get(path) != module.class_name:
            difference = f"is {classes[path]}" if path in classes else "is missing"
            raise UserError(
                f"the model is not the one that was recorded: its module {path!r} {difference}, "
                f"in the record it is {module.class_name}",
                "Give the model that was exported, or one built like it.",
            )


def _local(node: onnx.NodeProto) -> str:
    return node_key(node, MAIN)


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
        layers = {node.attribution.layer_id for node in self.provenance.nodes.values()}
        return tuple(sorted(number for number in layers if number is not None))

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
        components = defaultdict(list)
        for node in filter(_TYPES["attention"], nodes):
            item = node.attribution
            # Self-attention is what people mean by attention: its parts go by their bare names.
            components[item.component if item.semantic_type == SELF and item.component else item.role].append(node)
        return {component: tuple(group) for component, group in components.items()}

    def find_nodes_by_module_type(self, module_type: str) -> tuple[NodeEntry, ...]:
        """Nodes by what they are (`MODULE_TYPES`), or by a class of the model with everything inside: `BertLayer`."""
        if module_type in _TYPES:
            is_of_type, operators = _TYPES[module_type], _OPERATORS.get(module_type, ())
            domains = {} if self.provenance.edges is None else self.provenance.edges.domains
            named = ((node, operator_name(node.op_type, domains.get(node.key, ""))) for node in self._all())
            return tuple(node for node, operator in named if is_of_type(node) or operator in operators)
        classes = dict.fromkeys(part.class_name for part in self.provenance.hierarchy.modules.values())
        if module_type not in classes:
            raise UnknownName("module type", module_type, [*_TYPES, *classes])
        hierarchy = self.provenance.hierarchy
        paths = {path for path, module in hierarchy.modules.items() if module.class_name == module_type}

        @cache
        def inside(call: ModuleCall) -> bool:
            # Lists are never called: only the paths below them tell that something is inside of one.
            return any(path in paths for above in hierarchy.stack(call) for path in lineage_of(above.path))

        return tuple(node for node in self._all() if any(map(inside, node.attribution.owners)))

    def find_nodes_by_module(self, module: str) -> tuple[NodeEntry, ...]:
        """What was issued inside a module: all of its calls, or the one in `block#2`; `""` is the model."""
        inside = self.provenance.issued_within(module)
        return tuple(node for node in self._all() if inside(node.attribution))

    def find_nodes_by_layer(self, layer_id: int) -> tuple[NodeEntry, ...]:
        return self._in_layer(self._all(), layer_id)

    def find_nodes_by_role(self, role: str) -> tuple[NodeEntry, ...]:
        """A role or a pattern of roles: `attention.query`, `mlp.*`."""
        term = Term(QueryField.ROLE, Operator.IS, Glob(role))
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
