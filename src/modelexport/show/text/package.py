"""Packages for people: what is said of a folder of files, above what its verb says of each file.

    qwen3
    for genai · text-generation · from ./qwen3

    component  file        nodes  inputs  outputs  cache
    decoder    model.onnx    206       6        5      4

    module                      class         decoder  params
    (model)                     LlamaForCausalLM  206    107K

    cache of decoder: 4 tensors, 256 B·batch·past_sequence
      model.layers.{0,1}.self_attn ×2   2 tensors, 128 B·batch·past_sequence each

Every table of a file is the one that its verb makes (`analysis.py`, `checks.py`, `cost_and_profile.py`, `diff.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from modelexport.errors import printable
from modelexport.inspect.compare import Comparison
from modelexport.inspect.package.analyze import PackageAnalysis, PackageModule
from modelexport.inspect.package.cache_bytes import CacheTensor, ModuleCache, add_bytes, sum_by_module
from modelexport.inspect.package.cost import PackageCost
from modelexport.inspect.package.pairs import HasVerdict, PackagePair
from modelexport.inspect.package.validate import PackageValidation
from modelexport.inspect.query.answer import PackageAnswer
from modelexport.inspect.validate import Severity, Validation
from modelexport.record.package import AbsentModule
from modelexport.record.polynomial import Polynomial
from modelexport.record.results.diff import Diff
from modelexport.record.results.package_profile import PackageProfile, PhaseProfile
from modelexport.show.module_tree import grouped_rows, join_paths, path_pattern
from modelexport.show.text.analysis import analysis_tables, module_label, query_names, query_table
from modelexport.show.text.checks import comparison_tables, validation_tables
from modelexport.show.text.console import (
    MOST_ROWS,
    add_rest,
    count_text,
    counted,
    flops_text,
    plain,
    seconds_line,
    share_text,
    size_text,
    table,
)
from modelexport.show.text.cost_and_profile import cost_tables, node_tables, profile_tables, time_text
from modelexport.show.text.diff import diff_summary
from modelexport.show.text.table_layout import PlainTable

_FEW = 40  # rows of the module table that can be read at once
_Pair = TypeVar("_Pair", bound=HasVerdict)


def package_analysis_tables(analysis: PackageAnalysis, *, detailed: bool = False) -> Iterator[RenderableType]:
    yield from (*_head(analysis), Text(), _components(analysis), Text(), _modules(analysis, detailed))
    yield from _cache_lines(analysis.cache)
    if analysis.links:
        yield from (Text(), Text("Links", "bold"))
        yield from (plain(str(link)) for link in analysis.links)
    yield from _absent(analysis.absent)
    if detailed:
        for name, component in analysis.components.items():
            yield from (Text(), _title(name), *analysis_tables(component, detailed=True))


def _head(analysis: PackageAnalysis) -> Iterator[RenderableType]:
    target = f"for {analysis.target}" if analysis.target else "for no particular consumer"
    origin = f"from {analysis.model}" if analysis.model else ""
    yield plain(analysis.folder, "bold")
    yield plain(" · ".join(filter(None, (target, analysis.task, origin))), "dim")
    if analysis.filter_tag:
        yield plain(f"Only what has a tag with {analysis.filter_tag!r} in it.", "yellow")


def _components(analysis: PackageAnalysis) -> Table:
    shown = table("Components", "component", "file", "nodes", "attributed", "params", right=("nodes", "attributed"))
    for name, component in analysis.components.items():
        tally = component.coverage.nodes
        attributed = sum(count for level, count in tally.by_confidence.items() if level)
        root = next((module for module in component.modules if not module.path), None)
        shown.add_row(
            plain(name),
            plain(component.file.path, "dim"),
            str(tally.total),
            share_text(tally.share(attributed)),
            count_text(root.total.parameters) if root is not None else "",
        )
    return shown


def _modules(analysis: PackageAnalysis, detailed: bool) -> PlainTable:
    """One column of nodes for each component; parameters are those of all files, each counted once."""
    names = [*analysis.components]
    shown = table("Modules (nodes by component)", "module", "class", *names, "params", right=(*names, "params"))
    rows = grouped_rows(analysis.modules, _shown, 0 if detailed else _FEW)
    most = len(rows) if detailed else MOST_ROWS
    for row in rows[:most]:
        module = row.item
        shown.add_row(
            module_label(row),
            plain(module.class_name, "cyan"),
            *(str(module.nodes.get(name, "")) for name in names),
            count_text(module.parameters) if module.parameters else "",
        )
    add_rest(shown, len(rows) - most)
    return shown


def _shown(module: PackageModule) -> tuple[object, ...]:
    return module.class_name, tuple(module.nodes.items()), module.parameters


def _cache_lines(tensors: Iterable[CacheTensor]) -> Iterator[RenderableType]:
    """By component, and by modules that keep the same: a formula for each layer is what sizes a machine."""
    by_component: dict[str, list[CacheTensor]] = {}
    for tensor in tensors:
        by_component.setdefault(tensor.component, []).append(tensor)
    for name, states in by_component.items():
        total = add_bytes(tensor.nbytes for tensor in states)
        yield Text()
        yield plain(f"Cache of {name}: {counted(len(states), 'tensor')}, {_bytes(total)}", "bold")
        alike: dict[object, list[ModuleCache]] = {}
        for cache in sum_by_module(states):
            alike.setdefault((path_pattern(cache.module or ""), cache.tensors, cache.nbytes), []).append(cache)
        for group in alike.values():
            modules = join_paths([cache.module or "" for cache in group])
            times = f" ×{len(group)}" if len(group) > 1 else ""
            each = " each" if len(group) > 1 else ""
            first = group[0]
            yield plain(f"  {modules}{times}: {counted(first.tensors, 'tensor')}, {_bytes(first.nbytes)}{each}")


def _bytes(size: Polynomial | None) -> str:
    return "bytes not known" if size is None else size_text(size)


def _absent(modules: Iterable[AbsentModule]) -> Iterator[RenderableType]:
    rows = list(modules)
    if not rows:
        return
    shown = table("Modules that are in no file", "module", "class", "params", "why", right=("params",))
    for module in rows:
        cells = plain(module.class_name, "cyan"), count_text(module.parameters), plain(module.reason, "dim")
        shown.add_row(plain(module.path or "(model)"), *cells)
    yield from (Text(), shown)


def _title(name: str) -> Text:
    return plain(f"── {name} ──", "bold")


def package_query_table(answer: PackageAnswer) -> Iterator[RenderableType]:
    """Components without such nodes are counted in the last line alone."""
    for name, component in answer.components.items():
        if component.nodes:
            yield from (_title(name), *query_table(component), Text())
    if len(answer.components) == 1 and answer.nodes:
        return  # the table of the only component has counted all
    total = sum(len(component.provenance.nodes) for component in answer.components.values())
    files = sum(bool(component.nodes) for component in answer.components.values())
    yield Text(
        f"{len(answer.nodes)} of {total} nodes, in {files} of {counted(len(answer.components), 'component')}", "dim"
    )


def package_query_names(answer: PackageAnswer) -> str:
    """One node on each line, behind its component and a tab: names may have any other character."""
    lines = ((name, query_names(component).splitlines()) for name, component in answer.components.items())
    return "".join(f"{printable(name)}\t{line}\n" for name, names in lines for line in names)


def package_validation_tables(validation: PackageValidation, *, verbose: bool = False) -> Iterator[RenderableType]:
    for component in validation.components.values():
        yield from validation_tables(component, verbose=verbose)
    if validation.renewed:
        yield plain(f"listed as they are now: {', '.join(validation.renewed)}")
    joined = Validation(f"{validation.folder}, all together", validation.checks, validation.findings)
    yield from validation_tables(joined, verbose=verbose)
    errors = sum(finding.severity is Severity.ERROR for finding in validation.findings)
    errors += sum(len(component.errors) for component in validation.components.values())
    if errors:
        yield plain(f"{validation.folder}: {counted(errors, 'error')}", "red")
    else:
        files = counted(len(validation.components), "component")
        yield plain(f"{validation.folder}: {files}, no errors", "green")


def package_cost_tables(
    cost: PackageCost, *, by: str = "module", depth: int | None = None, everything: bool = False, verbose: bool = False
) -> Iterator[RenderableType]:
    at = ", ".join(f"{name}={size}" for name, size in cost.at.items())
    yield plain(" · ".join(part for part in (cost.folder, at) if part), "bold")
    numbers = ("FLOPs", "parameters", "weights", "activations")
    shown = table("", "component", *numbers, right=numbers)
    for name, component in cost.components.items():
        total = component.total
        weights = size_text(Polynomial.of(total.weight_bytes))
        amounts = flops_text(total.flops), count_text(total.parameters), weights, size_text(total.activation_bytes)
        shown.add_row(plain(name), *map(plain, amounts))
    yield from (Text(), shown)
    yield from _cache_lines(cost.cache)
    for name, component in cost.components.items():
        yield from (Text(), _title(name))
        if by == "node":
            yield from node_tables(component, verbose=verbose)
        else:
            yield from cost_tables(component, depth=depth, everything=everything, verbose=verbose)


def package_comparison_tables(pair: PackagePair[Comparison], *, verbose: bool = False) -> Iterator[RenderableType]:
    def show(comparison: Comparison) -> Iterator[RenderableType]:
        return comparison_tables(comparison, verbose=verbose)

    yield from _pair_tables(pair, show)


def _pair_tables(
    pair: PackagePair[_Pair], show: Callable[[_Pair], Iterator[RenderableType]]
) -> Iterator[RenderableType]:
    for name, compared in pair.components.items():
        yield from (_title(name), *show(compared), Text())
    yield from (plain(line, "" if pair.identical else "yellow") for line in pair_lines(pair))


def pair_lines(pair: PackagePair[_Pair]) -> Iterator[str]:
    """What differs beside the files that both packages have."""
    for folder, names in ((pair.left, pair.only_left), (pair.right, pair.only_right)):
        yield from (f"component {name} is only in {folder}" for name in names)
    yield from pair.joints
    differing = [name for name, compared in pair.components.items() if not compared.identical]
    if pair.identical:
        yield f"{pair.left} → {pair.right}: no differences"
    elif differing:
        yield f"{pair.left} → {pair.right}: {', '.join(differing)} differ{'s' if len(differing) == 1 else ''}"


def package_diff_summary(pair: PackagePair[Diff], *, verbose: bool = False) -> str:
    parts = [f"── {name} ──\n{diff_summary(diff, verbose=verbose)}" for name, diff in pair.components.items()]
    return "\n".join((*parts, "".join(f"{printable(line)}\n" for line in pair_lines(pair))))


def package_profile_tables(
    profile: PackageProfile, *, depth: int | None = None, everything: bool = False, verbose: bool = False
) -> Iterator[RenderableType]:
    asked = f"prompt of {counted(profile.prompt, 'token')}, {profile.new_tokens} new, batch {profile.batch}"
    yield plain(f"{profile.folder} · {asked}", "bold")
    prefill, decode = profile.prefill, profile.decode
    each = decode.seconds / max(profile.new_tokens, 1)
    rates = [f"{rate:,.1f} tokens/s" for rate in (prefill.tokens_per_second, decode.tokens_per_second)]
    took = time_text(prefill.seconds * 1e6), time_text(each * 1e6)
    yield plain(f"prefill {rates[0]} ({took[0]}) · decode {rates[1]} ({took[1]} a step)")
    numbers = ("past", "query", "a run", "attention")
    shown = table("", "phase", "component", *numbers, right=numbers)
    for phase in profile.phases:
        share = "?" if phase.attention is None else f"{phase.attention:.1%}"
        sizes = map(str, (phase.past, phase.query))
        shown.add_row(phase.phase, plain(phase.component), *sizes, time_text(phase.profile.wall), share)
    yield from (Text(), shown)
    for phase in _first_of_each_phase(profile, everything):
        title = f"── {phase.phase}: {phase.component}, past {phase.past}, query {phase.query} ──"
        yield from (Text(), plain(title, "bold"))
        yield from profile_tables(phase.profile, depth=depth, everything=everything)
    if verbose and profile.seconds:
        yield seconds_line(profile.seconds)


def _first_of_each_phase(profile: PackageProfile, everything: bool) -> Iterator[PhaseProfile]:
    """The phases whose modules are shown: each component once in each phase, or all."""
    seen: set[tuple[str, str]] = set()
    for phase in profile.phases:
        if everything or (phase.phase, phase.component) not in seen:
            seen.add((phase.phase, phase.component))
            yield phase
