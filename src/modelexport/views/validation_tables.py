"""A validation for people."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from modelexport.analysis.findings import Finding, Severity, Validation
from modelexport.views.amounts import counted
from modelexport.views.console import plain

_LISTED = 10
_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow"}


def validation_tables(validation: Validation, *, verbose: bool = False) -> Iterator[RenderableType]:
    if validation.written:
        yield plain(f"rewrote the keys of {counted(validation.repaired, 'node')} in {validation.written}")
    for _, group in groupby(validation.findings, key=lambda finding: finding.code):
        yield from _group(list(group), verbose)
    if verbose:
        yield plain("checks: " + ", ".join(validation.checks), "dim")
    yield _verdict(validation)


def _group(findings: list[Finding], verbose: bool) -> Iterator[RenderableType]:
    """Findings with one code; the first ones stand for the rest."""
    shown = findings if verbose else findings[:_LISTED]
    yield from map(_line, shown)
    if len(findings) > len(shown):
        yield Text(f"  … and {len(findings) - len(shown)} more of this kind (--verbose)", "dim")


def _line(finding: Finding) -> Text:
    line = Text(f"{finding.severity.value} ", _STYLES[finding.severity]).append(f"{finding.code} ", "bold")
    if finding.subject:
        line.append_text(plain(f"{finding.subject}: ", "cyan"))
    return line.append_text(plain(finding.message))


def _verdict(validation: Validation) -> Text:
    errors = len(validation.errors)
    warnings = len(validation.findings) - errors
    if not validation.findings:
        return plain(f"{validation.path}: {len(validation.checks)} checks, nothing wrong", "green")
    style = "red" if errors else "yellow"
    return plain(f"{validation.path}: {_counted(errors, 'error')}, {_counted(warnings, 'warning')}", style)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
