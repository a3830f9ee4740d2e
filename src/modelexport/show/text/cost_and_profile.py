"""Cost and profile for people: the tables of `cost` and `profile`, which nest as the modules do.

    module                        FLOPs    share   other  parameters  weights  activations  calls  nodes
    BertModel                     2.9 G  100.0 %  16.6 M       22.7M  90.9 MB      68.5 MB      1    288
      embeddings                      0    0.0 %   344 K       11.9M  47.7 MB       1.2 MB      1      7

Modules that take less than half a percent of everything are left out unless all are asked for, and so are containers
without work of their own. A column is a name in `_NUMBERS` and a line in `_cells`, or a heading and a cell in
`_profile_modules`.

    module                    time    self   median    ±   calls  nodes  op types
    BertModel              100.0 %   1.2 %  4.21 ms  3 %       1    184  MatMul, Add, +9 more
      encoder               88.4 %          3.72 ms  4 %       1    162  (fused: query+key 6.1%)

Times are what kernels take as they usually do; the mark `!` is for those whose runs are too far apart to be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from modelexport.record.polynomial import Polynomial
from modelexport.record.results.cost import Amounts, Cost, ModuleCost, NodeCost
from modelexport.record.results.profile import NOISY, ModuleTime, Profile, SharedTime
from modelexport.show.module_tree import TreeRow, relative_path, tree_rows
from modelexport.show.text.console import (
    count_text,
    counted,
    flops_text,
    note_lines,
    plain,
    seconds_line,
    share_text,
    size_text,
    table,
)

# Modules with less than this share of FLOPs, weights and activations are left out, unless all are asked for.
_SMALL_COST = 0.005
_TERMS, _REASONS = 3, 8  # of a polynomial, and of what is not known; -v and --by node show all
# What open axes are taken to be where modules are compared, and nowhere else.
_USUAL = 64
_NUMBERS = ("FLOPs", "share", "other", "parameters", "weights", "activations", "calls", "nodes")


def cost_tables(
    cost: Cost, *, depth: int | None = None, everything: bool = False, verbose: bool = False
) -> Iterator[RenderableType]:
    totals = _measures(cost.total)
    rows = tree_rows(cost.modules, lambda module: everything or not _is_small_cost(module, totals), depth)
    yield from _cost_head(cost)
    yield from (Text(), _cost_modules(cost, rows, 0 if verbose else _TERMS))
    yield from _left_out(len(cost.modules) - len(rows), _SMALL_COST, depth, everything)
    yield from _foot(cost)


def _left_out(count: int, small: float, depth: int | None, everything: bool) -> Iterator[Text]:
    """How many modules have no row, and how to see them; lists of modules without work of their own are among them."""
    more = "" if everything else f"; --all shows those with less than {small:.1%} of the total"
    more += "" if depth is None else "; a larger --depth shows those further inside"
    if count:
        yield plain(f"not shown: {counted(count, 'module')}{more}", "dim")


def node_tables(cost: Cost, *, verbose: bool = False) -> Iterator[RenderableType]:
    yield from _cost_head(cost)
    yield from (Text(), _nodes(cost.nodes, 0 if verbose else _TERMS))
    yield from _foot(cost)


def _cost_head(cost: Cost) -> Iterator[Text]:
    """With what is not known added in words: a sum without it would be too small without saying so."""
    at = ", ".join(f"{name}={size}" for name, size in cost.at.items())
    yield plain(" · ".join(part for part in (cost.file, at) if part), "bold")
    total = cost.total
    flops = f"{flops_text(total.flops)} FLOPs{_missing(total, 'flops')}"
    weights = f"{count_text(total.parameters)} parameters, {size_text(Polynomial.of(total.weight_bytes))} of weights"
    activations = f"{size_text(total.activation_bytes)} of activations{_missing(total, 'activation_bytes')}"
    yield plain(f"{flops}, and {flops_text(total.other)} other operations")
    yield plain(f"{weights}, {activations}")


def _missing(amounts: Amounts, measure: str) -> str:
    count = amounts.unknown.get(measure, 0)
    return f" + what {counted(count, 'node')} take{'s' if count == 1 else ''} of which it is not known" if count else ""


def _foot(cost: Cost) -> Iterator[Text]:
    """How to get numbers in place of axes, and what is not known and why."""
    left = [axis for axis in cost.axes if axis.name not in cost.at]
    inputs = ",".join(f"{axis.name}=…" for axis in left if axis.given)
    if inputs:
        yield plain(f"in terms of open axes; for numbers, give them sizes: --at {inputs}", "dim")
    yield from (plain(f"{axis.name}: {axis.source}", "dim") for axis in left if not axis.given)
    reasons = Counter(node.reason or "no reason is known" for node in cost.unknown)
    frequent = reasons.most_common(_REASONS)
    yield from note_lines(f"not known of {counted(count, 'node')}: {reason}" for reason, count in frequent)
    if len(reasons) > _REASONS:
        yield from note_lines([f"and {len(reasons) - _REASONS} more reasons: --by node --all shows them"])


def _cost_modules(cost: Cost, rows: Iterable[TreeRow[ModuleCost]], most: int) -> Table:
    """Terms of axes take room, and have no shares: then fewer columns are shown."""
    total_flops = cost.total.flops.value
    settled = total_flops is not None and cost.total.activation_bytes.value is not None
    numbers = _NUMBERS if settled else [name for name in _NUMBERS if name not in ("share", "other")]
    modules_table = table("", "module", *numbers, right=numbers)
    for column in modules_table.columns[1:]:
        column.no_wrap, column.overflow = False, "fold"
    for row in rows:
        calls = f"{row.item.calls:,}" if row.item.calls else ""
        cells = dict(_cells(row.item.total, total_flops, most), calls=calls)
        modules_table.add_row(plain(_row_name(row)), *(plain(cells[name]) for name in numbers))
    return modules_table


def _cells(total: Amounts, total_flops: int | None, most: int) -> Iterator[tuple[str, str]]:
    """Each under the name of its column; which columns are shown is decided by whether all axes have sizes."""
    share = total.flops.value
    yield "FLOPs", flops_text(total.flops, most) + _mark(total, "flops")
    yield "share", share_text(share / total_flops) if total_flops and share is not None else ""
    yield "other", flops_text(total.other, most) + _mark(total, "other")
    yield "parameters", count_text(total.parameters) if total.parameters else ""
    yield "weights", size_text(Polynomial.of(total.weight_bytes)) if total.weight_bytes else ""
    yield "activations", size_text(total.activation_bytes, most) + _mark(total, "activation_bytes")
    yield "nodes", f"{total.nodes:,}"


def _mark(amounts: Amounts, measure: str) -> str:
    return " + ?" if amounts.unknown.get(measure) else ""


def _nodes(nodes: Sequence[NodeCost], most: int) -> Table:
    columns = ("FLOPs", "other", "parameters", "weights", "activations", "times")
    nodes_table = table("", "node", "operator", "module", *columns, right=columns)
    for node in nodes:
        nodes_table.add_row(
            plain(node.name or node.key),
            plain(node.op_type),
            plain("(no module)" if node.module is None else node.module or "(model)"),
            plain(flops_text(node.flops, most)),
            plain(flops_text(node.other, most), "dim"),
            count_text(node.parameters) if node.parameters else "",
            size_text(Polynomial.of(node.weight_bytes)) if node.weight_bytes else "",
            plain(size_text(node.activation_bytes, most)),
            plain(str(node.times)) if node.times != 1 else "",
        )
    return nodes_table


def _measures(amounts: Amounts) -> tuple[int, int, int]:
    """FLOPs, weights and activations: a module that is small in all of them is left out."""
    sizes = (amounts.flops, amounts.activation_bytes)
    flops, activations = (size.at(dict.fromkeys(size.axes, _USUAL)).value or 0 for size in sizes)
    return flops, amounts.weight_bytes, activations


def _is_small_cost(module: ModuleCost, totals: tuple[int, int, int]) -> bool:
    pairs = zip(_measures(module.total), totals, strict=True)
    # What is not known may be much, and the model itself is always worth a row.
    is_known = bool(module.path) and not module.total.unknown
    is_small = is_known and all(part <= _SMALL_COST * total for part, total in pairs)
    return is_small or is_bare_container(module.path, module.class_name, bool(module.own.nodes))


def is_bare_container(path: str | None, class_name: str, has_own: bool) -> bool:
    """A container whose figures are those of the modules inside of it, like `encoder.layer`."""
    return bool(path) and not has_own and class_name in ("ModuleList", "ModuleDict")


def _row_name(row: TreeRow[Any]) -> str:
    """The model itself goes by its class."""
    name = "(no module)" if row.item.path is None else row.name or row.item.class_name
    return "  " * row.depth + name


# Modules that take less than this share of the time are left out, unless all are asked for.
_SMALL_TIME = 0.005
_OPERATORS, _SHARED, _SHARERS, _FALLEN = 2, 3, 4, 4  # that are named; the rest is counted
_NOISY, _ALIKE = "!", "≈"  # before the spread; `_legend` explains them


def profile_tables(
    profile: Profile, *, depth: int | None = None, everything: bool = False, verbose: bool = False
) -> Iterator[RenderableType]:
    def is_kept(module: ModuleTime) -> bool:
        bare = is_bare_container(module.path, module.class_name, bool(module.own))
        return everything or not (bare or module.time < _SMALL_TIME * profile.time)

    rows = tree_rows(profile.modules, is_kept, depth)
    yield from (_profile_head(profile), Text(), _profile_modules(profile, rows))
    yield from _left_out(len(profile.modules) - len(rows), _SMALL_TIME, depth, everything)
    yield from (plain(line, "dim") for line in _legend([row.item for row in rows]))
    yield plain(f"{share_text(profile.attributed)} of the time of all kernels belongs to a module", "dim")
    yield plain(_sum(profile), "dim" if profile.check.holds else "red")
    yield from note_lines(_fallen(profile))
    yield from note_lines(describe_noise(profile))
    yield from note_lines(profile.notes)
    if verbose and profile.seconds:
        yield seconds_line(profile.seconds)


def _profile_head(profile: Profile) -> Text:
    """What a time depends on: runs, optimization, providers; without it two profiles cannot be compared."""
    apart = "spread unknown" if profile.spread is None else f"± {profile.spread / 2:.0%}"
    parts = (
        profile.file,
        f"{counted(profile.runs, 'run')} after {profile.warmup} to warm up",
        f"optimization {profile.optimization} (nodes are those of the optimized graph)",
        ", ".join(map(_short, profile.providers)),
        f"{time_text(profile.wall)} a run ({apart}), {time_text(profile.time)} in kernels",
    )
    return plain(" · ".join(parts), "bold")


def _profile_modules(profile: Profile, rows: Iterable[TreeRow[ModuleTime]]) -> Table:
    # With one provider, the column would say the same in every row.
    several = len({*profile.providers, *profile.requested[:1]}) > 1
    numbers = ("time", "share", "self", "±", "calls", "nodes")
    modules_table = table("", "module", *numbers, "op types", *(["providers"] if several else []), right=numbers)
    for row in rows:
        module = row.item
        cells: list[RenderableType] = [
            plain(_row_name(row)),
            time_text(module.time),
            f"{module.time / profile.time:.1%}" if profile.time else "",
            f"{module.own / profile.time:.1%}" if profile.time and module.own else "",
            _apart(module),
            f"{round(module.calls, 1):,g}" if module.calls else "",
            f"{module.nodes:,}",
            Text("\n").join(plain(line, "dim") for line in _details(module, profile.time)),
        ]
        modules_table.add_row(*cells, *([plain(_providers(module))] if several else []))
    return modules_table


def _apart(module: ModuleTime) -> str:
    """How far the runs are apart, and whether that is too far to say much."""
    if module.spread is None:
        return "?"
    return f"{_NOISY if module.noisy else ''}{_ALIKE if module.alike else ''}{module.spread / 2:.0%}"


def _legend(modules: Sequence[ModuleTime]) -> Iterator[str]:
    """A mark is explained only if it is in the table."""
    known = [module for module in modules if module.spread is not None]
    if any(module.noisy for module in known):
        yield f"{_NOISY} noisy: the runs are more than ± {NOISY / 2:.0%} apart"
    if any(module.alike for module in known):
        yield f"{_ALIKE} differs from the next module inside of the same one by less than their runs do: no ranking"


def describe_noise(profile: Profile) -> Iterator[str]:
    """Why modules cannot be ranked; nothing if they can, or if the runs are too few to say, which is a note already."""
    if profile.rankable or (profile.noise is None and not profile.disturbed):
        return
    noise = "" if profile.noise is None else f": the runs leave open where {profile.noise:.0%} of the time goes"
    yield f"TOO NOISY TO RANK modules{noise}. Give more --runs, on a machine that does nothing else"
    if profile.disturbed:
        usual = f"kernels that took as long as they usually do would take {time_text(profile.time)} a run"
        yield f"{usual}, and they take {time_text(profile.busy)}: something else keeps this machine busy"


def _sum(profile: Profile) -> str:
    """What the trace says by itself, and what the table adds up to."""
    check = profile.check
    trace, charged = (time_text(total / profile.runs) for total in (check.trace, check.charged))
    if check.holds:
        return f"ONNX Runtime's trace has {trace} of kernels a run on average, and the parts add up to it"
    return f"NOT TO BE RELIED ON: ONNX Runtime's trace has {trace} of kernels a run on average, the parts {charged}"


def _fallen(profile: Profile) -> Iterator[str]:
    """Modules that did not run on the provider that was asked for, by what they do themselves."""
    own: dict[str, float] = {}
    for node in profile.nodes:
        if profile.requested and node.provider != profile.requested[0]:
            path = "(no module)" if node.module is None else node.module or "(model)"
            own[path] = own.get(path, 0.0) + node.time
    if not own:
        return
    paths = sorted(own, key=lambda path: -own[path])
    more = f", +{len(paths) - _FALLEN} more" if len(paths) > _FALLEN else ""
    part = share_text(sum(own.values()) / profile.time) if profile.time else "all"
    asked, providers = _short(profile.requested[0]), sorted({_short(node.provider) for node in profile.nodes})
    instead = ", ".join(name for name in providers if name != asked)
    yield f"{part} of the time fell back from {asked} to {instead}, in {', '.join(paths[:_FALLEN])}{more}"


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider")


def _details(module: ModuleTime, total_time: float) -> Iterator[str]:
    names = list(module.operators)
    more = f", +{len(names) - _OPERATORS} more" if len(names) > _OPERATORS else ""
    yield ", ".join(names[:_OPERATORS]) + more
    for group in module.shared[:_SHARED]:
        yield f"({_shared(group, module.path or '', total_time)})"
    if len(module.shared) > _SHARED:
        yield f"(+{len(module.shared) - _SHARED} more of several modules)"


def _shared(group: SharedTime, above: str, total_time: float) -> str:
    """A kernel for several modules is told of the module around them."""
    # The module around them may be one of them: it goes by its last name.
    paths = (path.rpartition(".")[2] if path == above else relative_path(path, above) for path in group.modules)
    names = [path or "(model)" for path in paths]
    shown = names[:_SHARERS] + ([f"{len(names) - _SHARERS} more"] if len(names) > _SHARERS else [])
    listed = f"one of: {' or '.join(shown)}" if group.unclear else f"fused: {'+'.join(shown)}"
    return f"{listed} {group.time / total_time:.1%}" if total_time else listed


def _providers(module: ModuleTime) -> str:
    """In shares of the module, because a fallback of one small node matters little."""
    total = sum(module.providers.values())
    named = {_short(name): time for name, time in module.providers.items()}
    return ", ".join(f"{name} {time / total:.0%}" for name, time in named.items()) if total else ", ".join(named)


def time_text(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.2f} s"
    return f"{microseconds / 1e3:.2f} ms" if microseconds >= 1e3 else f"{microseconds:.0f} µs"
