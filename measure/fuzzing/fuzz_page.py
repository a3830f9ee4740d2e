"""The page of the fuzzing run: cases by verb, mutation and seed, how they ended, and those that broke the rule."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from measure.fuzzing.limits import BYTES, SECONDS
from measure.fuzzing.run_cases import CaseResult
from measure.pages import Table, compose_page, describe_machine, written_by

_HEAD = """
Small files of all kinds are mutated: fields of messages, packed records, JSON, external data, names, functions that
unfold, plain bytes. Every reading and transforming verb is run on them. A case is one mutated file and one command. It
must end with exit code 0, 1 or 2, without a traceback, with a message where it ends with 2, within {seconds:.0f} s of
computing and {gigabytes} GB, and write nothing but where it was told to. What is promised about files from strangers is
in [security.md](../security.md).

These are {count:,} cases, from {first:,} to {last:,}. `python -m measure fuzz --case N` runs one of them again;
`--first N --cases M` runs others. `--resume` goes on with a run that was ended, and runs what broke the rule again."""
_COLUMNS = ("cases", "exit 0", "exit 1", "exit 2", "broke the rule", "mean s", "longest s", "most MB")


def compose_fuzz_page(results: Sequence[CaseResult]) -> str:
    numbers = [result.number for result in results]
    head = _HEAD.format(
        seconds=SECONDS, gigabytes=BYTES >> 30, count=len(numbers), first=min(numbers), last=max(numbers)
    )
    return compose_page("Fuzzing", written_by("fuzz", f"on {describe_machine()}") + "\n" + head, tabulate(results))


def tabulate(results: Sequence[CaseResult]) -> list[Table]:
    return [
        _count_by("Verbs", "verb", results, lambda result: result.verb),
        _count_by("Mutations", "mutation", results, lambda result: result.mutation),
        _count_by("Seeds", "seed", results, lambda result: result.seed),
        _count_faults("Cases that broke the rule", results, lambda result: result.fault),
        _count_faults(
            "Cases that broke the rule when they were first run, and do no longer",
            results,
            lambda result: "" if result.fault else result.earlier,
        ),
    ]


def _count_by(title: str, column: str, results: Sequence[CaseResult], key: Callable[[CaseResult], str]) -> Table:
    groups = defaultdict(list)
    for result in results:
        groups[key(result)].append(result)
    rows = [_count_group(name, groups[name]) for name in sorted(groups)]
    return Table(title, "", (column, *_COLUMNS), (*rows, _count_group("**all**", results)))


def _count_group(name: str, results: Sequence[CaseResult]) -> tuple[str, ...]:
    sound = Counter(result.code for result in results if not result.fault)
    faults = sum(bool(result.fault) for result in results)
    seconds = [result.seconds for result in results]
    counts = (len(results), sound[0], sound[1], sound[2], faults)
    mean = sum(seconds) / max(len(seconds), 1)
    most = max((result.megabytes for result in results), default=0)
    return name, *(f"{count:,}" for count in counts), f"{mean:.3f}", f"{max(seconds, default=0):.1f}", str(most)


def _count_faults(title: str, results: Sequence[CaseResult], find_fault: Callable[[CaseResult], str]) -> Table:
    kinds = defaultdict(list)
    for result in results:
        if fault := find_fault(result):
            kinds[fault].append(result)
    rows = tuple((kind, str(len(cases)), _name_cases(cases)) for kind, cases in sorted(kinds.items()))
    return Table(title, "" if rows else "None.", ("how", "cases", "for instance"), rows or (("–", "0", ""),))


def _name_cases(cases: Sequence[CaseResult]) -> str:
    return ", ".join(f"{case.number} ({case.verb})" for case in cases[:3])


def list_failures(results: Sequence[CaseResult]) -> str:
    """Grouped by where they failed, the most frequent first."""
    groups = defaultdict(list)
    for result in results:
        if result.fault:
            groups[result.fault, re.sub(r"['\"].*", "", result.where)[:110]].append(result)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    lines = [f"{len(cases):6}  {fault:12} {cases[0].where}  [{_name_cases(cases)}]" for (fault, _), cases in ordered]
    return "\n".join(lines) or "No case broke the rule."
