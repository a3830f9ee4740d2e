"""Role assignment: role and layer for all nodes and initializers of a record.

A role says what a node is for (`attention.query`, `mlp.up`, `norm`), from the dataflow around it alone: no names of
modules, no architectures. To add one: write a function `find_<role>(flow, known) -> {node key: role}` in
`attention.py`, `blocks.py` or `embedding_and_head.py`, show the graph that it matches in the docstring of the file, and
call it in `find_roles` below, before the rules that are less specific. Questions about what a value is made of are
answered by `value_origins.py`; a new fact about values is a field of `ValueOrigin`.

A layer is a repeated block of the model, numbered in the order in which the blocks run:

    encoder.layer (ModuleList)  ─ encoder.layer.0, encoder.layer.1, …       -> layer 0, layer 1, …

A block holds parameters, lies in a ModuleList, ModuleDict or Sequential, and has modules inside or is not one of
torch's own. What is numbered are calls made from inside of one call, so a single block called N times is N layers. A
list holds blocks only, and all of them are numbered; a Sequential runs what it holds and may hold anything, so of
its modules only those of a class that repeats are. Of lists in lists, and of layers in layers, the outermost counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from modelexport.attribute.roles.attention import find_attentions, name_attention_roles
from modelexport.attribute.roles.blocks import find_feed_forward, find_norms, find_residuals
from modelexport.attribute.roles.embedding_and_head import (
    find_embeddings,
    find_heads,
    find_query_key_steps,
    locate_nodes,
    name_other_products,
)
from modelexport.attribute.roles.value_origins import RoleFlow, common_text, trace_flow
from modelexport.graph.index import Graph
from modelexport.graph.operators import CARRIERS
from modelexport.record.hierarchy import Hierarchy, ModuleCall, lineage_of, parent_path
from modelexport.record.provenance import Attribution, NodeEntry, Provenance


@dataclass(frozen=True)
class Layers:
    hierarchy: Hierarchy
    # Blocks that were asked for before: most nodes share their call with others.
    _blocks: dict[ModuleCall, ModuleCall | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def number_of(self, attribution: Attribution) -> int | None:
        block = self.block(attribution)
        return None if block is None else self._numbers[block]

    def block(self, attribution: Attribution) -> ModuleCall | None:
        """The outermost repeated block that something is part of; of several owners, the block of those in any.

        layers.0.self_attn + rotary_emb     layers.0
        layers.0.mlp + layers.1.norm        none
        """
        whole = self._block_around(attribution.ancestor)
        if whole is not None:
            return whole
        blocks = {block for owner in attribution.owners if (block := self._block_around(owner)) is not None}
        return blocks.pop() if len(blocks) == 1 else None

    def _block_around(self, call: ModuleCall | None) -> ModuleCall | None:
        if call is None:
            return None
        if call not in self._blocks:
            blocks = (block for above in self.hierarchy.stack(call) for block in self._blocks_at(above))
            self._blocks[call] = next((block for block in blocks if block in self._numbers), None)
        return self._blocks[call]

    def _blocks_at(self, call: ModuleCall) -> Iterator[ModuleCall]:
        """The call if it is one of a block; before it, blocks around it whose forward was run without calling them."""
        for path in lineage_of(parent_path(call.path)):
            if path not in self.hierarchy.call_counts and self._is_block(path) and not self._is_list(path):
                yield ModuleCall(path)
        if self._is_block(call.path):
            yield call

    @cached_property
    def _numbers(self) -> Mapping[ModuleCall, int]:
        groups: dict[tuple[str, ModuleCall | None], dict[ModuleCall, None]] = {}
        for site in self.hierarchy.calls:
            for block in self._blocks_at(site.call):
                groups.setdefault((self.container(block.path), site.parent), {})[block] = None
        numbers: dict[ModuleCall, int] = {}
        for (container, _), calls in groups.items():
            for number, call in enumerate(self._repeated(container, list(calls))):
                numbers.setdefault(call, number)
        return numbers

    def container(self, path: str) -> str:
        """The list that holds a block; of lists in lists the outermost."""
        above = parent_path(path)
        while self._is_list(parent_path(above)) and self._is_list(above):
            above = parent_path(above)
        return above

    def _is_list(self, path: str) -> bool:
        """It holds modules and is never called itself."""
        module = self.hierarchy.modules.get(path)
        return module is not None and module.container and path not in self.hierarchy.call_counts

    def _repeated(self, container: str, calls: list[ModuleCall]) -> list[ModuleCall]:
        if self._is_list(container):
            return calls
        classes = Counter(self._class(call) for call in calls)
        return [call for call in calls if classes[self._class(call)] > 1]

    def _class(self, call: ModuleCall) -> tuple[str, str]:
        module = self.hierarchy.modules[call.path]
        return module.package, module.class_name

    @cached_property
    def _with_parameters(self) -> frozenset[str]:
        modules = self.hierarchy.modules.values()
        return frozenset(above for module in modules if module.parameters for above in lineage_of(module.path))

    def _is_block(self, path: str) -> bool:
        container, module = (self.hierarchy.modules.get(name) for name in (parent_path(path), path))
        if not path or container is None or not container.container or module is None:
            return False
        if path not in self._with_parameters:
            return False
        return bool(self.hierarchy.children(path)) or not module.package.startswith("torch.nn")


def assign_roles(graph: Graph, provenance: Provenance, flow: RoleFlow | None = None) -> Provenance:
    """The same record with role and layer of every node and initializer filled in. `flow` if it was traced already."""
    layers = Layers(provenance.hierarchy)
    blocks = {key: layers.block(entry.attribution) for key, entry in provenance.nodes.items()}
    lists = {key: layers.container(block.path) for key, block in blocks.items() if block is not None}
    roles = find_roles(flow or trace_flow(graph), lists)
    nodes: dict[str, NodeEntry] = {}
    for key, entry in provenance.nodes.items():
        layer = layers.number_of(entry.attribution)
        answer = replace(entry.attribution, role=roles.get(key, ""), layer_id=layer)
        nodes[key] = replace(entry, attribution=answer)
    weights: dict[str, Attribution] = {}
    for name, attribution in provenance.initializers.items():
        readers = [reader.key for reader in graph.consumers.get(name, ())]
        role = common_text(roles.get(key, "") for key in readers)
        # A weight that several layers read is part of none.
        numbers = {nodes[key].attribution.layer_id if key in nodes else None for key in readers}
        weights[name] = replace(attribution, role=role, layer_id=numbers.pop() if len(numbers) == 1 else None)
    return replace(provenance, nodes=nodes, initializers=weights)


def find_roles(flow: RoleFlow, lists: Mapping[str, str]) -> dict[str, str]:
    """The most specific rules come first: each is given the roles that are known already, and leaves them alone.

    lists  for nodes inside a repeated block: the path of the list that holds the block
    """
    roles = find_norms(flow)  # first: their arithmetic looks like residuals and activations
    attentions = find_attentions(flow)
    roles |= name_attention_roles(flow, attentions)
    roles |= find_query_key_steps(flow, attentions, roles)
    roles |= find_embeddings(flow, attentions, roles)
    roles |= find_residuals(flow, roles)
    positions = locate_nodes(flow, lists, {key: role for key, role in roles.items() if role == "residual"})
    roles |= find_heads(flow, positions, roles)  # before feed-forward: a classifier with an activation is no MLP
    roles |= find_feed_forward(flow, roles)
    roles |= name_other_products(flow, positions, roles)  # whatever is left of products
    roles |= _find_biases(flow, roles)  # last: what goes with a product has its role
    roles |= _find_moved_weights(flow, roles)
    return roles


def _find_biases(flow: RoleFlow, roles: Mapping[str, str]) -> dict[str, str]:
    """Adding a vector to a product is part of it."""
    biases: dict[str, str] = {}
    for key, product in flow.products.items():
        readers = flow.graph.consumers.get(product.node.outputs[0], ())
        if key in roles and len(readers) == 1 and readers[0].operator == "Add" and readers[0].key not in roles:
            addends = [value for value in readers[0].inputs if value not in product.node.outputs]
            if product.weight and addends and flow.origin(addends[0]).weight:
                biases[readers[0].key] = roles[key]
    return biases


def _find_moved_weights(flow: RoleFlow, roles: Mapping[str, str]) -> dict[str, str]:
    """Transposing or converting a weight is part of what reads it."""
    moves: dict[str, str] = {}
    for node in reversed(flow.order):
        if node.operator in CARRIERS and node.key not in roles and flow.origin(node.key).weight:
            readers = flow.graph.successors(node)
            role = common_text(moves.get(reader.key) or roles.get(reader.key, "") for reader in readers)
            if role:
                moves[node.key] = role
    return moves
