"""The data of the page: everything that it knows, as one document that `model.js` and its neighbours read.

    modules, calls, weights, nodes, values   columns, one list for each field (`modules.py`, `nodes.py`)
    flows, layouts                           what is drawn of each module call (`flow.py`, `layout.py`)
    cost, profile, verification, difference  what is laid over the modules, where there is any

Texts are stored once, and named by number. Flows that look the same, as those of equal layers do, share one layout.

    {"modules": {"name": [1, 2], "parent": [-1, 0]}, "flows": [{"module": 1, "layout": 0, …}], "texts": ["", "encoder"]}

The order in which columns are made is part of the result: whoever uses a text or a value first gives it its number.
Lists of values are cut at fixed lengths; what is left out is counted beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Provenance
from modelexport.record.results.cost import Cost
from modelexport.record.results.diff import Diff
from modelexport.show.data.overlays import Overlay, Profiled, Verified
from modelexport.show.page import modules
from modelexport.show.page.difference import difference_columns
from modelexport.show.page.flow import Box, CallFlow, Entering, Group, Inner, Leaving, Own, draw_flow, flows_of
from modelexport.show.page.layout import Pair, laid_out
from modelexport.show.page.nodes import Distinct, Json, ModuleTree, NodeColumns, Texts

# Kinds of boxes, as the page knows them.
_MODULE, _NODE, _ENTERS, _LEAVES, _GROUP = range(5)  # the same numbers are in flow_drawing.js
# Names of values that are listed for an edge or for a module, and operators of a group.
_MOST_VALUES = 8
_MOST_LISTED = 100  # of values that enter or leave a call
_MOST_OPERATORS = 3  # a box is narrow


@dataclass(frozen=True)
class Numbering:
    tree: ModuleTree
    nodes: Mapping[str, int]
    values: Distinct[str]
    texts: Texts


class FlowColumns:
    """`unmoved` are values that do not depend on what the model is fed: constants, and arithmetic with shapes."""

    def __init__(
        self, provenance: Provenance, numbering: Numbering, unmoved: Collection[str], *, own_nodes: bool
    ) -> None:
        self._provenance, self._numbering = provenance, numbering
        self._unmoved, self._own_nodes = unmoved, own_nodes
        self._layouts = Distinct[tuple[int, tuple[Pair, ...]]]()

    def layouts(self) -> list[Json]:
        """Asked for last: flows add to them."""
        layouts = [laid_out(count, edges) for count, edges in self._layouts.values]
        return [{"boxes": layout.boxes, "bends": layout.bends} for layout in layouts]

    def flow(self, call: ModuleCall, flow: CallFlow) -> Json:
        """A flow with a single box has nothing to draw: then only what enters and leaves is listed."""
        drawing = draw_flow(flow, self._unmoved, own_nodes=self._own_nodes)
        pairs = tuple((edge.source, edge.target) for edge in drawing.edges)
        enters, leaves = flow.enters, flow.leaves
        document: Json = {
            "module": self._numbering.tree.number_at(call.path),
            "call": call.index,
            "enters": self._values(enters, _MOST_LISTED),
            "leaves": self._values(leaves, _MOST_LISTED),
            "counts": [len(enters), len(leaves)],
            "hidden": drawing.hidden,
            "folded": int(drawing.folded),
        }
        if len(drawing.groups) > 1:
            document["layout"] = self._layouts.number((len(drawing.groups), pairs))
            document["boxes"] = [self._box(group) for group in drawing.groups]
            document["cut"] = [[edge.source, edge.target] for edge in drawing.cut]
            document["edges"] = [
                [edge.source, edge.target, len(edge.values), *self._values(edge.values, _MOST_VALUES)]
                for edge in drawing.edges
            ]
        return document

    def _values(self, names: Sequence[str], most: int) -> list[int]:
        return self._numbering.values.numbers_of(names[:most])

    def _box(self, group: Group) -> list[int]:
        """Its kind, and what it stands for; several boxes, or a node where there are none, are a text and a number."""
        if len(group) > 1 or (isinstance(group[0], Own) and not self._own_nodes):
            return [_GROUP, self._numbering.texts.number(self._summary(group)), len(group)]
        match group[0]:
            case Inner(call):
                return [_MODULE, self._numbering.tree.number_at(call.path), call.index]
            case Own(key):
                return [_NODE, self._numbering.nodes[key]]
            case Entering(value):
                return [_ENTERS, self._numbering.values.number(value)]
            case Leaving(value):
                return [_LEAVES, self._numbering.values.number(value)]

    def _summary(self, group: Group) -> str:
        """What a box stands for that several were put into: modules and operators, the most frequent first."""
        counted = Counter(map(self._word, group))
        shown = [f"{word} ×{count}" if count > 1 else word for word, count in counted.most_common(_MOST_OPERATORS)]
        more = len(counted) - _MOST_OPERATORS
        return ", ".join([*shown, f"+{more} more"] if more > 0 else shown)

    def _word(self, box: Box) -> str:
        """What a box counts as in the title of a group: its operator, its class, or just a value."""
        match box:
            case Own(key):
                return self._provenance.nodes[key].op_type
            case Inner(call):
                module = self._provenance.hierarchy.modules.get(call.path)
                return module.class_name if module else call.path
        return "value"


MOST_NODES = 50_000  # beyond that, a browser takes seconds to answer
_VERSION = 1  # of the document; the scripts that read it are in the same file


@dataclass(frozen=True)
class PageSubject:
    """A tagged file, and what is said of it.

    facts     words and what they stand for, as in `exporter`, `dynamo`
    notes     whatever the reader should know beside what is shown
    cost      with the sizes that axes are taken to have
    overlays  the last of a kind is shown
    diff      from another file to this one
    """

    name: str
    file: TaggedFile
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    cost: Cost | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    overlays: Sequence[Overlay] = ()
    diff: Diff | None = None


def page_data(subject: PageSubject, *, nodes: bool = True) -> Json:
    """Without `nodes`, modules and what flows between them alone."""
    file, texts = subject.file, Texts([""])
    provenance = file.provenance
    tree = ModuleTree.of(provenance.hierarchy)
    rows = NodeColumns(file, tree, texts)
    node_columns = rows.nodes() if nodes else None
    numbering = Numbering(tree, rows.numbers, rows.values, texts)
    edges = file.provenance_with_edges.known_edges()
    unmoved = {*provenance.nodes, *edges.values} - file.graph.computed
    drawn = FlowColumns(provenance, numbering, unmoved, own_nodes=nodes)
    # Before the rows that they add to: layouts, values and texts are numbered as flows first use them.
    flows = [drawn.flow(call, flow) for call, flow in flows_of(provenance, edges).items()]
    return {
        "version": _VERSION,
        "file": {"name": subject.name, "nodes": len(provenance.nodes), "facts": list(map(list, subject.facts))},
        "notes": list(subject.notes),
        "modules": modules.module_columns(file, tree, texts),
        "calls": modules.call_columns(provenance, tree),
        "weights": modules.weight_columns(file, tree, texts),
        "nodes": node_columns,
        "answers": rows.answers(),
        "owners": rows.owners(),
        "evidence": rows.evidence(),
        "flows": flows,
        "layouts": drawn.layouts(),
        **dict(_overlaid(subject, tree, rows.numbers if nodes else {}, texts)),
        "values": rows.value_columns(),
        "texts": texts.values,
    }


def _overlaid(
    subject: PageSubject, tree: ModuleTree, nodes: Mapping[str, int], texts: Texts
) -> Iterator[tuple[str, Json]]:
    """The key is what the scripts know the overlay by; one that is not there is not offered."""
    if subject.cost is not None:
        yield "cost", modules.cost_columns(subject.cost, subject.sizes, tree, nodes)
    for overlay in subject.overlays:
        match overlay:
            case Profiled():
                yield "profile", modules.profile_columns(overlay, tree, nodes)
            case Verified():
                yield "verification", modules.verification_columns(overlay, tree, nodes, texts)
    if subject.diff is not None:
        entries = subject.file.provenance.nodes
        charged = {key: tree.number_of(entry.attribution) for key, entry in entries.items()}
        yield "difference", difference_columns(subject.diff, tree, texts, charged)
