"""Budgets: what a model may be at most, held against what its steps report.

    [budget]                        of all rows; [row.budget] goes over it, figure by figure
    size = "400MB"                  of the files that the first step writes
    nodes = 2000
    operators = { Loop = 0 }        counts, or a list of all that may occur
    time = "5m"                     of all steps
    memory = "8GB"                  of each step
    latency = "20ms"                of one run, from `profile`
    difference = 1e-4               largest difference of an output, from the check of `export`
    verified = true                 `verify` found nothing wrong
    int8.size = "100MB"             of the step int8

What is unknown is a broken budget: a row whose profile crashed has not kept its latency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from modelexport.errors import propose_name, some_of
from modelexport.fleet.fleet_plan import Budget, Row, Step
from modelexport.fleet.sections import TomlSection
from modelexport.fleet.verbs import MODEL, VERBS
from modelexport.record.results.fleet import BrokenBudget, StepResult, StepStatus

_FIGURES = ("size", "nodes", "operators", "time", "memory", "latency", "difference", "verified")
_ALL = ""  # the step of a budget that is about the whole row
_LISTED = -1

Budgets = Mapping[tuple[str, str], Budget]


def parse(section: TomlSection, steps: Sequence[str]) -> Budgets:
    """Budgets by step and figure. A table with the name of a step is about that step."""
    budgets: dict[tuple[str, str], Budget] = {}
    for key in section.content:
        if key in steps and key not in _FIGURES:
            for (_, figure), budget in parse(section.table(key), ()).items():
                budgets[key, figure] = replace(budget, step=key)
        elif key in _FIGURES:
            budgets[_ALL, key] = _parse_figure(section, key)
        elif isinstance(section.content[key], dict) and steps:
            continue  # of a step that this row does not have
        else:
            raise section.fault(key, f"there is no budget {key!r}", propose_name(key, _FIGURES, "There are"))
    return budgets


def _parse_figure(section: TomlSection, key: str) -> Budget:
    if key == "operators":
        return Budget(_ALL, key, operators=_parse_operators(section))
    if key == "verified":
        return Budget(_ALL, key, float(section.flag(key) or False))
    if key in ("time", "latency"):
        return Budget(_ALL, key, section.duration(key) or 0)
    if key in ("size", "memory"):
        return Budget(_ALL, key, section.size(key) or 0)
    value = section.value(key, int, float, str)
    try:
        limit = float(value if value is not None else "")
    except ValueError:
        limit = -1
    if not 0 <= limit < float("inf"):
        raise section.wrong(key, value, "a number of at least 0")
    return Budget(_ALL, key, limit)


def _parse_operators(section: TomlSection) -> Mapping[str, int]:
    if isinstance(section.content["operators"], dict):
        table = section.table("operators")
        return {name: table.count(name, 0) for name in table.content}
    return dict.fromkeys(section.texts("operators") or (), _LISTED)


def merge(above: Budgets, own: Budgets) -> Budgets:
    return {**above, **own}


def further_steps(budgets: Budgets, names: Sequence[str]) -> tuple[str, ...]:
    """Steps that a row needs for its budgets alone: operators are counted by `analyze`."""
    wanted = [("operators", "analyze"), ("latency", "profile"), ("verified", "verify")]
    asked = {figure for (_, figure), budget in budgets.items() if figure != "verified" or budget.limit}
    return tuple(verb for figure, verb in wanted if figure in asked and verb not in names)


def place(budgets: Budgets, steps: Sequence[Step]) -> tuple[Budget, ...]:
    """Each budget with the step whose result it is held against; empty for what all steps are about."""
    first = next((step.name for step in steps if VERBS[step.verb].writes == MODEL), steps[0].name if steps else "")
    verbs = {"latency": "profile", "verified": "verify", "operators": "analyze"}
    placed = []
    for (_, figure), budget in budgets.items():
        step = budget.step
        if not step and figure in verbs:
            step = next((item.name for item in steps if item.verb == verbs[figure]), "")
        elif not step and figure in ("size", "nodes", "difference"):
            step = first
        if figure != "verified" or budget.limit:
            placed.append(replace(budget, step=step))
    return tuple(placed)


def check_budgets(row: Row, results: Mapping[str, StepResult]) -> Iterator[BrokenBudget]:
    """Those that are broken."""
    for budget in row.budgets:
        if budget.figure == "operators":
            yield from _check_operators(budget, results.get(budget.step))
            continue
        seen = _SEEN[budget.figure](budget.step, results)
        # Not known is not kept: nobody would look at a budget that is always met.
        broken = seen is None or (not seen if budget.figure == "verified" else seen > budget.limit)
        if broken:
            text = _texts(budget.figure)
            shown = None if seen is None else text(seen)
            yield BrokenBudget(budget.step or "all steps", budget.figure, text(budget.limit), shown)


def _check_operators(budget: Budget, result: StepResult | None) -> Iterator[BrokenBudget]:
    if result is None or not result.operators:
        yield BrokenBudget(budget.step or "analyze", "operators", _operators_text(budget.operators), None)
        return
    listed = _LISTED in budget.operators.values()
    wrong = {
        name: count
        for name, count in result.operators.items()
        if (name not in budget.operators if listed else count > budget.operators.get(name, count))
    }
    if wrong:
        allowed = _operators_text({name: budget.operators[name] for name in wrong if name in budget.operators})
        seen = some_of([f"{name} {count}" for name, count in sorted(wrong.items())], 6)
        yield BrokenBudget(budget.step, "operators", allowed or _operators_text(budget.operators), seen)


def _operators_text(operators: Mapping[str, int]) -> str:
    return some_of([name if count == _LISTED else f"{name} {count}" for name, count in operators.items()], 6)


def _size(step: str, results: Mapping[str, StepResult]) -> float | None:
    result = results.get(step)
    return float(result.model_bytes) if result is not None and result.model_bytes else None


def _figure(name: str) -> Callable[[str, Mapping[str, StepResult]], float | None]:
    def read(step: str, results: Mapping[str, StepResult]) -> float | None:
        result = results.get(step)
        return None if result is None else result.figures.get(name)

    return read


def _time(step: str, results: Mapping[str, StepResult]) -> float | None:
    times = [result.seconds for name, result in results.items() if step in ("", name)]
    return sum(times) if times else None


def _memory(step: str, results: Mapping[str, StepResult]) -> float | None:
    peaks = [result.peak_bytes for name, result in results.items() if step in ("", name)]
    known = [peak for peak in peaks if peak is not None]
    return float(max(known)) if known else None


def _verified(step: str, results: Mapping[str, StepResult]) -> float | None:
    result = results.get(step)
    return None if result is None or not result.status.has_output else float(result.status is StepStatus.OK)


_SEEN: Mapping[str, Callable[[str, Mapping[str, StepResult]], float | None]] = {
    "size": _size,
    "nodes": _figure("nodes"),
    "difference": _figure("difference"),
    "latency": _figure("latency"),
    "time": _time,
    "memory": _memory,
    "verified": _verified,
}


def _texts(figure: str) -> Callable[[float], str]:
    match figure:
        case "size" | "memory":
            return lambda value: f"{value / 1e6:,.1f} MB"
        case "time":
            return lambda value: f"{value:,.1f} s"
        case "latency":
            return lambda value: f"{value * 1000:,.3f} ms"
        case "verified":
            return lambda value: "verified" if value else "not verified"
        case _:
            return lambda value: f"{value:,g}"
