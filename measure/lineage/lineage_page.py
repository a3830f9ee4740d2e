"""The page of lineage: targets, tools, models, and tools that fail."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from measure.lineage.chains import CHAINS
from measure.lineage.scoring import Score, ToolOutcome, ToolResult, sum_scores
from measure.pages import MEASURED, Table, compose_page, list_versions, percent, written_by
from measure.results import installed_versions

_Key = TypeVar("_Key", bound=Hashable)

PAGE = MEASURED / "lineage.md"
# Beside those that every page depends on.
_TOOLS = (
    "onnxscript",
    "onnxslim",
    "onnxsim",
    "onnxoptimizer",
    "onnxconverter-common",
)
_TEXT = (
    "{written_by}\n\n"
    "{models} models, most of them of the corpus, are exported by both exporters, every tool and chain is run on each "
    "of them for real, and what comes out is relinked: {files} files with {nodes} nodes. Among them are a block that "
    "is called four times and layers with equal weights (`measure/lineage/repeated.py`), a file merged with a second "
    "copy of itself, and projections packed by hand (`measure/lineage/surgery.py`).\n\n"
    "Finding a node again under its own name proves nothing. So the relinker is given every file without any node name "
    "and with half, then with nine tenths, of its tensor names replaced, and is scored on the hidden ones alone. The "
    "truth comes from the names that the tool left: the true node is the one that made the tensor of that name, and "
    "the true module is the one around everything between the named tensors that a node reads and the one that it "
    "makes; for the same operator, also that of the node itself. This is computed by code that shares nothing with the "
    "relinker (`measure/lineage/truth.py`).\n\n"
    "A node is credited too widely if, at `strong` or more, one of its modules owns no node between the nearest named "
    "values above and below it, has made nothing that is equal to such a node, and has computed no constant for it. "
    "Where only a region is known, the answer has to be `inferred`.\n\n"
    "Independently, both files are run, and the result of every node that is said to come from others is compared with "
    "theirs: within the tolerance of `verify` where the tool does not change numbers; else it is contradicted if it is "
    "less than 20 dB near and another tensor is nearer than that. Where this is so of a node that has kept its own "
    "name ({drifted} nodes), few bits have moved the numbers further than one tensor is from the next: such a node is "
    "not compared."
)


@dataclass(frozen=True)
class Target:
    """One line of the summary: what it is, what was measured, and whether that is enough."""

    what: str
    measured: str
    wanted: str
    holds: bool


def compose_lineage(results: Sequence[ToolResult]) -> str:
    made = [result for result in results if result.scores]
    versions = list_versions(installed_versions(*_TOOLS))
    head = _TEXT.format(
        written_by=written_by("lineage", f"with {versions}"),
        models=len({result.row for result in made}),
        files=f"{len(made):,}",
        nodes=f"{sum_scores(made, 0.0).nodes:,}",
        drifted=f"{sum_scores(made, 0.0).drifted:,}",
    )
    tables = [_targets(made), _tools(made), _models(made), _exceptions(results)]
    return compose_page("Lineage", head, tables)


def targets(made: Sequence[ToolResult]) -> list[Target]:
    named, half, most = (sum_scores(made, share) for share in (0.0, 0.5, 0.9))
    empty = max((named, half, most), key=lambda score: score.empty)
    weakest = _find_weakest(made)
    contradicted = sum(score.contradicted for score in (named, half, most))
    alone = sum(score.one_only for score in (named, half, most))
    too_wide = sum(score.too_wide for score in (named, half, most))
    widely = f"{too_wide} of {sum(score.judged for score in (named, half, most)):,} in three relinkings"
    compared = f"{contradicted} of {named.compared:,}, each three times"
    several = f"{alone} of {named.several:,}, each three times"
    return [
        _check_share("nodes with a source, all relinkings", empty.nodes - empty.empty, empty.nodes, 0.999),
        _check_share("50 % hidden: the true node is among the sources", half.contains, half.scored, 0.997),
        _check_share("50 % hidden: the module is exact", half.module, half.told, 0.993),
        _check_share("90 % hidden: the true node is among the sources", most.contains, most.scored, 0.985),
        _check_share("90 % hidden: the module is exact", most.module, most.told, 0.985),
        _check_share(f"90 % hidden: the module, weakest tool ({weakest[0]})", weakest[1].module, weakest[1].told, 0.99),
        Target("relinked tensors contradicted by value", compared, "0", not contradicted),
        Target("nodes credited too widely at `strong` or more", widely, "0", not too_wide),
        Target("fused nodes credited to only one of several modules", several, "0", not alone),
    ]


def _check_share(what: str, part: int, whole: int, wanted: float) -> Target:
    share = _share(part, whole)
    return Target(what, f"{percent(share)} % of {whole:,}", f"at least {wanted:.1%}", share >= wanted)


def _find_weakest(made: Sequence[ToolResult]) -> tuple[str, Score]:
    groups = _group_results(made, lambda result: result.chain)
    by_tool = {chain: sum_scores(results, 0.9) for chain, results in groups.items()}
    return min(by_tool.items(), key=lambda item: _share(item[1].module, item[1].told))


def _targets(made: Sequence[ToolResult]) -> Table:
    found = targets(made)
    rows = tuple((one.what, one.measured, one.wanted, "yes" if one.holds else "no") for one in found)
    return Table("Together", "", ("what", "measured", "target", "holds"), rows, all(one.holds for one in found))


_COLUMNS = (
    "nodes",
    "no source",
    "50 %: node",
    "50 %: module",
    "90 %: node",
    "90 %: module",
    "one of several",
    "too wide",
    "values compared",
    "contradicted",
    "record survives",
    "same from it alone",
)


def _tools(made: Sequence[ToolResult]) -> Table:
    by_tool = _group_results(made, lambda one: one.chain)
    rows = tuple(
        (f"`{chain}`", str(len(by_tool[chain])), *_cells(by_tool[chain])) for chain in CHAINS if chain in by_tool
    )
    text = (
        "Over all models. `50 %: node` is the share of hidden nodes whose true node is among the sources, `module` of "
        "those whose module is exact; the counts are the worst of the three relinkings. `record survives` counts "
        "files whose metadata the tool kept; `same from it alone` is the share of nodes that get the same modules "
        "without the file before."
    )
    return Table("Tools", text, ("tool", "files", *_COLUMNS), rows)


def _models(made: Sequence[ToolResult]) -> Table:
    by_model = _group_results(made, lambda one: (one.row, one.exporter))
    rows = tuple((*model, str(len(results)), *_cells(results)) for model, results in sorted(by_model.items()))
    return Table("Models", "Over all tools.", ("model", "exporter", "files", *_COLUMNS), rows)


def _cells(results: Sequence[ToolResult]) -> tuple[str, ...]:
    scores = named, half, most = [sum_scores(results, share) for share in (0.0, 0.5, 0.9)]
    planted = [result for result in results if result.planted]
    same, nodes = (sum(result.alone[place] for result in planted) for place in (0, 1))
    return (
        f"{named.nodes:,}",
        str(max(score.empty for score in scores)),
        percent(_share(half.contains, half.scored)),
        percent(_share(half.module, half.told)),
        percent(_share(most.contains, most.scored)),
        percent(_share(most.module, most.told)),
        str(max(score.one_only for score in scores)),
        str(max(score.too_wide for score in scores)),
        f"{named.compared:,}",
        str(max(score.contradicted for score in scores)),
        str(len(planted)),
        percent(_share(same, nodes)) if nodes else "",
    )


def _exceptions(results: Sequence[ToolResult]) -> Table:
    """Grouped by what was said: a tool that fails on one model fails on others for the same reason."""
    odd = [result for result in results if result.outcome is not ToolOutcome.OK]
    groups = _group_results(odd, _reason)
    rows = tuple(
        (chain, outcome, _escape(message), ", ".join(dict.fromkeys(f"{one.row} ({one.exporter})" for one in group)))
        for (chain, outcome, message), group in sorted(groups.items())
    )
    text = (
        "A tool that fails made nothing. What is broken or changed was relinked and scored all the same; its values "
        "were not compared."
    )
    return Table("Tools that fail or break a model", text, ("tool", "outcome", "message", "models"), rows)


def _reason(result: ToolResult) -> tuple[str, str, str]:
    # Of a model that torch refuses, no tool is to blame. By how much numbers differ is another matter in each model.
    chain = "(export)" if result.outcome is ToolOutcome.REFUSED else f"`{result.chain}`"
    message = "" if result.outcome is ToolOutcome.CHANGED else result.message
    return chain, str(result.outcome), message


def _group_results(results: Iterable[ToolResult], key: Callable[[ToolResult], _Key]) -> dict[_Key, list[ToolResult]]:
    found: dict[_Key, list[ToolResult]] = {}
    for result in results:
        found.setdefault(key(result), []).append(result)
    return found


def _escape(message: str) -> str:
    return " ".join(message.split()).replace("|", "\\|").replace("<", "&lt;")


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
