"""Runs of layers beside each other: what they are to each other, and what lies around them.

encoder ─────────┬──────┬──────┐          every layer of the second reads the end of the first, its start does not
decoder.0 ─► ◄───┘  .1 ◄┘  .2 ◄┘
down.0 ─► down.1 ─► … ─► Concat ─► up.0   every layer of the second starts where a value of the first is put beside
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from modelexport.attribute.sources.repeats import Block, Run
from modelexport.attribute.sources.segments import Trunk
from modelexport.attribute.sources.trunk import reads_of
from modelexport.record.hierarchy import join, parent_path

STEM, HEAD = "stem", "head"


def name_runs(trunk: Trunk, runs: Sequence[Run]) -> list[str]:
    """A prefix for the layers of each run; empty if there is one run."""
    if len(runs) == 1:
        return [""]
    names = [""] * len(runs)
    made_of = _runs_that_values_are_made_of(trunk, runs)
    for reader, run in enumerate(runs):
        for source in range(len(runs)):
            if source != reader and not names[source] and not names[reader]:
                if _attends_to(trunk, run, 1 << source, made_of):
                    names[source], names[reader] = "encoder", "decoder"
                elif _takes_skips_from(run, runs[source]):
                    names[source], names[reader] = "down", "up"
    unnamed = [number for number, name in enumerate(names) if not name]
    for count, number in enumerate(unnamed):
        names[number] = f"stack_{count}"
    return _distinguish(names)


def _distinguish(names: Sequence[str]) -> list[str]:
    """The second encoder is encoder_1."""
    return [
        f"{name}_{names[:number].count(name)}" if name in names[:number] else name for number, name in enumerate(names)
    ]


def _runs_that_values_are_made_of(trunk: Trunk, runs: Sequence[Run]) -> Mapping[str, int]:
    """By value: a bit for each run whose end went into it."""
    ends = {run.last.end: 1 << number for number, run in enumerate(runs)}
    made_of: dict[str, int] = {}
    for node in trunk.order:
        bits = 0
        for value in reads_of(trunk.flow.graph, node):
            bits |= made_of.get(value, 0)
        for output in node.outputs:
            if output and (bits or output in ends):
                made_of[output] = bits | ends.get(output, 0)
    return made_of


def _attends_to(trunk: Trunk, run: Run, source: int, made_of: Mapping[str, int]) -> bool:
    """Whether every block reads something of the other run from outside of this run, beside what it starts from."""
    if made_of.get(run.first.start, 0) & source:
        return False
    # The first block itself is made of the other run; what is made of it is inside.
    inside = {output for block in run.blocks for node in block.nodes for output in node.outputs}
    return all(
        any(made_of.get(value, 0) & source for value in _read_from_outside(trunk, block, inside))
        for block in run.blocks
    )


def _read_from_outside(trunk: Trunk, block: Block, inside: set[str]) -> Iterator[str]:
    return (value for node in block.nodes for value in reads_of(trunk.flow.graph, node) if value not in inside)


def _takes_skips_from(run: Run, source: Run) -> bool:
    forks = {block.opening.fork for block in run.blocks if block.opening is not None}
    made = {output for block in source.blocks for node in block.nodes for output in node.outputs}
    return len(forks) == len(run.blocks) and forks <= made


def name_surroundings(
    trunk: Trunk, runs: Sequence[Run], names: Sequence[str], layers: Sequence[Sequence[str]]
) -> dict[str, str]:
    """Paths of nodes before, between and behind layers: stem, the stage that they lead to, head."""
    made_of = _runs_that_values_are_made_of(trunk, runs)
    targets = _paths_led_to(trunk, runs, names, layers)
    paths: dict[str, str] = {}
    for node in trunk.order:
        number, bits = trunk.number_of.get(node.key), made_of.get(node.key, 0)
        if number is None:
            # Shared by several layers: of the run that it is made of, if that has a name.
            path = names[bits.bit_length() - 1] if bits else ""
        else:
            path = targets.get(number, HEAD if bits else "")
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
