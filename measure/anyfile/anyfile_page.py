"""The page of any file: targets, tools, models, and models that could not be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from measure.anyfile.read_exports import PARAMETERS, PLAIN, TASKS, TOOLS, UNNAMED, ReadResult
from measure.anyfile.scoring import Score
from measure.corpus.rows import EXPORTERS
from measure.lineage.lineage_page import Target
from measure.pages import MEASURED, Table, list_versions, percent, percent_of, written_by
from measure.results import installed_versions

_Key = TypeVar("_Key", bound=Hashable)

PAGE = MEASURED / "any-file.md"
_TEXT = (
    "{written_by}\n\n"
    "{dynamo} models of the corpus are exported by dynamo and {script} by TorchScript. Everything that modelexport "
    "wrote is removed from the file, which is then what a plain `torch.onnx.export` writes, and the hierarchy is "
    "looked for in what is left: {files} files with {nodes} nodes. The truth is the record that was removed; after a "
    "tool, that record relinked to what the tool made.\n\n"
    "An answer is right if all modules that it names own the node, or if it is the innermost module around all owners "
    "of a node that has several. A module around the true one is `too shallow`: it is not right. Nor is a node that "
    "nothing is known of (`fallback`). `wrong at strong` are answers with `strong` confidence that are not right, too "
    "shallow ones among them. Calls of one module are not told apart, and all names of a module count as one. Nodes "
    "that the record itself knows nothing of ({unknown}) are not counted.\n\n"
    "Weights of a fresh model are equal in many places, and exporters store equal ones once. Those of a trained model "
    "are not, so seeded noise is added to all parameters and buffers before the export."
)
_LONGEST = 160
_FOLDERS = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+")
_SHARES = (
    "right",
    "too shallow",
    "wrong",
    "fallback",
    "wrong at strong",
    "class right",
    "class known",
    "parameter named",
)


def compose_head(results: Sequence[ReadResult]) -> str:
    read = [result for result in results if not result.refusal]
    score = sum_scores(read)
    rows = {exporter: {result.row for result in read if result.exporter == exporter} for exporter in EXPORTERS}
    return _TEXT.format(
        written_by=written_by("anyfile", f"with {list_versions(installed_versions('onnxscript', 'onnxslim'))}"),
        dynamo=len(rows["dynamo"]),
        script=len(rows["torchscript"]),
        files=f"{len(read):,}",
        nodes=f"{score.nodes:,}",
        unknown=f"{score.unknown:,}",
    )


def compose_tables(results: Sequence[ReadResult]) -> list[Table]:
    read = [result for result in results if not result.refusal]
    return [_targets(read), _kinds(read), _models(read), _refusals(results)]


def sum_scores(results: Iterable[ReadResult]) -> Score:
    return sum((result.score for result in results), Score())


def targets(results: Iterable[ReadResult]) -> list[Target]:
    """The figures that must hold, for the parts that were measured."""
    read = [result for result in results if not result.refusal]
    dynamo = sum_scores(result for result in read if result.task == PLAIN and result.exporter == "dynamo")
    script = sum_scores(result for result in read if result.task == PLAIN and result.exporter == "torchscript")
    tools = sum_scores(result for result in read if result.task in TOOLS)
    unnamed = sum_scores(result for result in read if result.task == UNNAMED)
    named = sum_scores(result for result in read if result.task == PARAMETERS)
    checked = [
        (dynamo, _at_least("plain dynamo export: module right", dynamo.right, dynamo.nodes, 0.98)),
        (dynamo, _at_least("plain dynamo export: class right", dynamo.class_right, dynamo.nodes, 0.98)),
        (dynamo, _at_most("plain dynamo export: wrong at strong", dynamo.wrong_strong, dynamo.nodes, 0)),
        (script, _at_least("plain TorchScript export: module right", script.right, script.nodes, 0.95)),
        (script, _at_most("plain TorchScript export: wrong at strong", script.wrong_strong, script.nodes, 0.005)),
        (tools, _at_least("after tools: module right", tools.right, tools.nodes, 0.85)),
        (tools, _at_most("after tools: fallback", tools.fallback, tools.nodes, 0.03)),
        (tools, _at_most("after tools: wrong at strong", tools.wrong_strong, tools.nodes, 0.01)),
        (unnamed, _at_least("node names removed: module right", unnamed.right, unnamed.nodes, 0.85)),
        (named, _at_least("all names removed but parameters': module right", named.right, named.nodes, 0.85)),
    ]
    return [target for score, target in checked if score.nodes]


def _at_least(what: str, part: int, whole: int, wanted: float) -> Target:
    share = part / whole if whole else 1.0
    return Target(what, f"{percent(share)} % of {whole:,}", f"at least {wanted:.0%}", share >= wanted)


def _at_most(what: str, part: int, whole: int, wanted: float) -> Target:
    share = part / whole if whole else 0.0
    limit = f"at most {wanted:.1%}" if wanted else "0"
    return Target(what, f"{part:,} of {whole:,} ({share:.2%})", limit, share <= wanted)


def _targets(read: Sequence[ReadResult]) -> Table:
    checked = targets(read)
    rows = tuple((target.what, target.measured, target.wanted, "yes" if target.holds else "no") for target in checked)
    return Table("Together", "", ("what", "measured", "target", "holds"), rows, all(t.holds for t in checked))


def _kinds(read: Sequence[ReadResult]) -> Table:
    groups = _group_results(read, lambda result: (TASKS.index(result.task), result.exporter))
    rows = tuple(
        (f"`{TASKS[task]}`", exporter, str(len(group)), *_cells(group))
        for (task, exporter), group in sorted(groups.items())
    )
    text = (
        "Over all models, in percent of nodes. `plain` is the export as it is; of `no node names`, names and metadata "
        "of nodes are gone; of `parameters`, all names besides, but those of parameters, inputs and outputs; the "
        "others are tools, run on the models of [lineage.md](lineage.md). The last column is the share of nodes whose "
        "module occurs in the name of a stored parameter: exporters store most weights of Linear transposed, under "
        "a number, and modules without weights (activations, rotary embeddings) have no parameter. Where parameters "
        "are all that is left, no answer to the others can be right."
    )
    return Table("Files", text, ("file", "exporter", "files", "nodes", *_SHARES), rows)


def _models(read: Sequence[ReadResult]) -> Table:
    plain = _group_results(read, lambda result: (result.row, result.exporter))
    rows = []
    for (row, exporter), group in sorted(plain.items()):
        by_task = {result.task: [result] for result in group}
        tools = [result for result in group if result.task in TOOLS]
        rows.append(
            (
                row,
                exporter,
                *_brief_cells(by_task.get(PLAIN, [])),
                *_brief_cells(by_task.get(PARAMETERS, [])),
                *_brief_cells(tools),
            )
        )
    brief = ("nodes", "right", "wrong at strong")
    columns = [f"{kind}: {name}" for kind in ("plain", "parameters", "tools") for name in brief]
    return Table("Models", "In percent of nodes.", ("model", "exporter", *columns), tuple(rows))


def _cells(results: Sequence[ReadResult]) -> tuple[str, ...]:
    score = sum_scores(results)
    parts = (
        score.right,
        score.shallow,
        score.wrong,
        score.fallback,
        score.wrong_strong,
        score.class_right,
        score.class_known,
        score.named,
    )
    return (f"{score.nodes:,}", *(percent_of(part, score.nodes) for part in parts))


def _brief_cells(results: Sequence[ReadResult]) -> tuple[str, str, str]:
    score = sum_scores(results)
    if not results:
        return "", "", ""
    return f"{score.nodes:,}", percent_of(score.right, score.nodes), percent_of(score.wrong_strong, score.nodes)


def _refusals(results: Sequence[ReadResult]) -> Table:
    """Grouped by what was said."""
    refused = [result for result in results if result.refusal]
    groups = _group_results(refused, lambda result: (result.task if result.task in TOOLS else "", result.refusal))
    rows = tuple(
        (f"`{tool}`" if tool else "(export)", _escape(reason), ", ".join(dict.fromkeys(map(_label, group))))
        for (tool, reason), group in sorted(groups.items())
    )
    return Table("No file to read", "torch refuses, or a tool fails.", ("tool", "reason", "models"), rows)


def _label(result: ReadResult) -> str:
    return f"{result.row} ({result.exporter})"


def _group_results(results: Iterable[ReadResult], key: Callable[[ReadResult], _Key]) -> dict[_Key, list[ReadResult]]:
    groups: dict[_Key, list[ReadResult]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return groups


def _escape(message: str) -> str:
    """In one line, without folders of the machine that it was said on, and without the end of a long story."""
    plain = _FOLDERS.sub("", " ".join(message.split()))
    short = plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}…"
    return short.replace("|", "\\|").replace("<", "&lt;")
