"""Structure: a hierarchy of a graph in which no name means anything, from blocks that repeat.

    layers.0 … layers.11                  one run of equal blocks
    stages.1.layers.0                     a run that changes its width, or is cut by something else
    encoder.layers.0, decoder.layers.0    every block of the second run reads what the first one made
    down.layers.0, up.layers.0            blocks of the second run start where skips out of the first one end
    stack_0.layers.0, stack_1.layers.0    other runs beside each other or behind each other
    stem, head                            what the first block is made of, and what is made of the last one
    layers.3.attention.query              the part of a block that a node plays, from its role

    ShortcutFinder ─► cut_trunk ─► link_chains ─► find_runs ─► names ─► Reading
    shortcuts.py      segments.py  chains.py      runs.py      here

Where nothing repeats, nothing is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_, or_

from modelexport.attribute.roles.assign import find_roles
from modelexport.attribute.roles.value_origins import RoleFlow, common_text, trace_flow
from modelexport.attribute.sources.reading import Reading
from modelexport.attribute.sources.runs import Block, Run, find_runs
from modelexport.attribute.sources.segments import Trunk, cut_trunk
from modelexport.attribute.sources.shortcuts import reads_of
from modelexport.graph.index import Graph, Node
from modelexport.record.hierarchy import join, parent_path
from modelexport.record.provenance import Confidence, EvidenceKind

SOURCE = "structure"
STEM, HEAD = "stem", "head"
# Among more runs than these, nobody asks which one is whose encoder.
_MOST_RELATED = 64
# Parts that have parts of their own, and the steps of these that are no modules.
_COMPOSED = frozenset({"attention", "cross_attention", "mlp"})
_STEPS = frozenset({"scores", "softmax", "context", "mask", "scale", "bias"})
_SINGLE = frozenset({"norm", "convolution", "projection"})


def read_structure(graph: Graph, flow: RoleFlow | None = None) -> Reading | None:
    """The repeated blocks of a graph and their parts; None if nothing repeats. `flow` if it was traced already."""
    trunk = cut_trunk(flow or trace_flow(graph))
    runs = find_runs(trunk)
    if not runs:
        return None
    names = _name_runs(trunk, runs)
    layers = [list(_layer_paths(run, name)) for run, name in zip(runs, names, strict=True)]
    paths = _name_surroundings(trunk, runs, names, layers)
    paths.update(_name_nodes(trunk, runs, layers))
    nodes = {key: (path,) for key, path in _with_bodies(graph, paths)}
    return Reading(SOURCE, Confidence.INFERRED, nodes, _weight_paths(graph, nodes), kind=EvidenceKind.DATAFLOW)


def _layer_paths(run: Run, name: str) -> Iterator[str]:
    """`stages.1.layers.0` if a stage has several layers, else `layers.3`."""
    sizes = Counter(block.stage for block in run.blocks)
    is_staged = 1 < len(sizes) < len(run.blocks)
    numbers: Counter[int] = Counter()
    for number, block in enumerate(run.blocks):
        layer = f"stages.{block.stage}.layers.{numbers[block.stage]}" if is_staged else f"layers.{number}"
        numbers[block.stage] += 1
        yield join(name, layer)


def _name_nodes(trunk: Trunk, runs: Sequence[Run], layers: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    blocks = [pair for run, paths in zip(runs, layers, strict=True) for pair in zip(run.blocks, paths, strict=True)]
    lists = {node.key: parent_path(path) for block, path in blocks for node in block.nodes}
    roles = find_roles(trunk.flow, lists)
    for block, path in blocks:
        parts = _name_parts(trunk.flow, block, roles)
        for node in block.nodes:
            yield node.key, join(path, parts[node.key]) if node.key in parts else path


def _with_bodies(graph: Graph, paths: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Nodes in the body of an If or a Loop are where the node is that holds the body."""
    for key, path in paths.items():
        yield key, path
        yield from ((inner.key, path) for inner in graph.subgraph_nodes(graph.by_key[key]))


def _weight_paths(graph: Graph, nodes: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    paths: dict[str, tuple[str, ...]] = {}
    for name in graph.initializers:
        readers = (path for reader in graph.consumers.get(name, ()) for path in nodes.get(reader.key, ()))
        if distinct := tuple(dict.fromkeys(readers)):
            paths[name] = distinct
    return paths


def _name_runs(trunk: Trunk, runs: Sequence[Run]) -> list[str]:
    """A prefix for the layers of each run; empty if there is one run.

    encoder ─────────┬──────┬──────┐          every layer of the second reads the end of the first, its start does not
    decoder.0 ─► ◄───┘  .1 ◄┘  .2 ◄┘
    down.0 ─► down.1 ─► … ─► Concat ─► up.0   every layer of the second starts where a value of the first is put beside
    """
    if len(runs) == 1:
        return [""]
    names = [""] * len(runs)
    if len(runs) <= _MOST_RELATED:
        attended, skipped = _runs_attended_to(trunk, runs), _runs_with_skips_to(runs)
        for reader in range(len(runs)):
            for source in range(len(runs)):
                if source != reader and not names[source] and not names[reader]:
                    if attended[reader] >> source & 1:
                        names[source], names[reader] = "encoder", "decoder"
                    elif skipped[reader] == source:
                        names[source], names[reader] = "down", "up"
    unnamed = [number for number, name in enumerate(names) if not name]
    for count, number in enumerate(unnamed):
        names[number] = f"stack_{count}"
    return list(_distinguish(names))


def _distinguish(names: Iterable[str]) -> Iterator[str]:
    """The second encoder is encoder_1."""
    earlier: Counter[str] = Counter()
    for name in names:
        yield f"{name}_{earlier[name]}" if name in earlier else name
        earlier[name] += 1


def _runs_attended_to(trunk: Trunk, runs: Sequence[Run]) -> list[int]:
    """By run: a bit for each other run of which every block reads something, beside what the first one starts from."""
    made_of = _trace_runs(trunk, {run.last.end: 1 << number for number, run in enumerate(runs)}, or_)
    attended: list[int] = []
    for run in runs:
        # The first block itself is made of the other run; what is made of it is inside.
        inside = {output for block in run.blocks for node in block.nodes for output in node.outputs}
        reads = ([made_of.get(value, 0) for value in _reads_of_block(trunk, block) - inside] for block in run.blocks)
        attended.append(reduce(and_, (reduce(or_, bits, 0) for bits in reads)) & ~made_of.get(run.first.start, 0))
    return attended


def _reads_of_block(trunk: Trunk, block: Block) -> set[str]:
    return {value for node in block.nodes for value in reads_of(trunk.flow.graph, node)}


def _runs_with_skips_to(runs: Sequence[Run]) -> list[int | None]:
    """By run: the run that made what is put beside the start of every block; None if there is not one such run."""
    maker = {
        output: number
        for number, run in enumerate(runs)
        for block in run.blocks
        for node in block.nodes
        for output in node.outputs
    }
    skipped: list[int | None] = []
    for run in runs:
        forks = {block.opening.fork for block in run.blocks if block.opening is not None}
        makers = {maker.get(fork) for fork in forks}
        skipped.append(makers.pop() if len(forks) == len(run.blocks) and len(makers) == 1 else None)
    return skipped


def _trace_runs(trunk: Trunk, ends: Mapping[str, int], combine: Callable[[int, int], int]) -> Mapping[str, int]:
    """By value: what the ends of runs that went into it stand for, combined."""
    made_of: dict[str, int] = {}
    for node in trunk.order:
        known = [made_of[value] for value in reads_of(trunk.flow.graph, node) if value in made_of]
        for output in node.outputs:
            own = [ends[output]] if output in ends else []
            if output and (known or own):
                made_of[output] = reduce(combine, [*known, *own])
    return made_of


def _name_surroundings(
    trunk: Trunk, runs: Sequence[Run], names: Sequence[str], layers: Sequence[Sequence[str]]
) -> dict[str, str]:
    """Paths of nodes before, between and behind layers: stem, the stage that they lead to, head."""
    last_run = _trace_runs(trunk, {run.last.end: number for number, run in enumerate(runs)}, max)
    targets = _paths_led_to(trunk, runs, names, layers)
    paths: dict[str, str] = {}
    for node in trunk.order:
        number = trunk.number_of.get(node.key)
        if number is None:
            # Shared by several layers: of the run that it is made of, if that has a name.
            path = names[last_run[node.key]] if node.key in last_run else ""
        else:
            path = targets.get(number, HEAD if node.key in last_run else "")
        if path:
            paths[node.key] = path
    return paths


def _paths_led_to(
    trunk: Trunk, runs: Sequence[Run], names: Sequence[str], layers: Sequence[Sequence[str]]
) -> dict[int, str]:
    """By number of a segment outside of layers: the stem or the stage that it leads to."""
    starts: dict[str, str] = {}
    for run, name, paths in zip(runs, names, layers, strict=True):
        for number, (block, path) in enumerate(zip(run.blocks, paths, strict=True)):
            starts.setdefault(block.segments[0].start, parent_path(parent_path(path)) if number else join(name, STEM))
    following = {before: number for number, before in trunk.before.items()}
    targets: dict[int, str] = {}
    for segment in reversed(trunk.segments):
        onward = following.get(segment.number)
        if segment.end in starts:
            targets[segment.number] = starts[segment.end]
        elif onward in targets:
            targets[segment.number] = targets[onward]
    return targets


def _name_parts(flow: RoleFlow, block: Block, roles: Mapping[str, str]) -> dict[str, str]:
    """By node key: the part of the block that a node is in; what is not in one is left out.

    role                            part
    attention.query, mlp.up         the same; `attention1`, `attention2` where a block has several
    attention.softmax               attention: a step of it, and no module
    norm, convolution, projection   norm1, norm2, … in the order in which they run; without a number if there is one
    residual, anything else         the block itself

    Reshapes and transposes between the parts of an attention are of that attention.
    """
    parts: dict[str, str] = {}
    for names in (_name_composed(block, roles), _name_single(flow, block, roles)):
        parts.update(names)
    nodes = [node for segment in block.segments for node in segment.members]
    settled = parts.keys() | {node.key for node in nodes if roles.get(node.key) == "residual"}
    _spread_to_makers(flow, [node for node in nodes if node.key not in settled], parts)
    return parts


def _name_composed(block: Block, roles: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    tops = [[roles.get(node.key, "").partition(".")[0] for node in segment.members] for segment in block.segments]
    for top in _COMPOSED:
        holding = [segment for segment, held in zip(block.segments, tops, strict=True) if top in held]
        for number, segment in enumerate(holding, 1):
            name = f"{top}{number}" if len(holding) > 1 else top
            for node in segment.members:
                head, _, component = roles.get(node.key, "").partition(".")
                if head == top:
                    yield node.key, name if component in _STEPS or not component else f"{name}.{component}"


def _name_single(flow: RoleFlow, block: Block, roles: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for role in _SINGLE:
        groups: list[list[str]] = []
        group_of: dict[str, int] = {}
        for node in (node for segment in block.segments for node in segment.members):
            if roles.get(node.key) != role:
                continue
            numbers = [group_of[maker.key] for maker in flow.graph.predecessors(node) if maker.key in group_of]
            # A norm that became arithmetic is one part; two products in a row are two.
            number = numbers[0] if numbers and role == "norm" else len(groups)
            if number == len(groups):
                groups.append([])
            groups[number].append(node.key)
            group_of[node.key] = number
        for number, keys in enumerate(groups, 1):
            yield from ((key, f"{role}{number}" if len(groups) > 1 else role) for key in keys)


def _spread_to_makers(flow: RoleFlow, nodes: Sequence[Node], parts: dict[str, str]) -> None:
    """What only one part reads is of it: weights of what reads them, other nodes of an attention or feed-forward."""
    computed = flow.graph.computed
    for node in reversed(nodes):
        around = [parts.get(reader.key, "") for reader in flow.graph.successors(node)]
        if part := _common_top(around) if node.key in computed else common_text(around):
            parts[node.key] = part
    for node in nodes:
        makers = [maker for maker in flow.graph.predecessors(node) if maker.key in computed]
        if node.key not in parts and (part := _common_top([parts.get(maker.key, "") for maker in makers])):
            parts[node.key] = part


def _common_top(parts: Sequence[str]) -> str:
    """The attention or feed-forward that all parts are of; empty if there is none."""
    top = common_text(part.partition(".")[0] for part in parts)
    return top if top.rstrip("0123456789") in _COMPOSED else ""
