"""What a validation found. A finding is a value; nothing here is raised."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, order=True, slots=True)
class Finding:
    """One thing that is wrong. `subject` is a node, an initializer, a module, or empty for the file."""

    severity: Severity
    code: str
    subject: str
    message: str


@dataclass(frozen=True)
class Validation:
    """Findings in the order of the checks that made them; `checks` are the names of all checks that ran.

    repaired   how many nodes were given other keys
    written    the file that the repaired model went to, if anything was written
    """

    path: str
    checks: tuple[str, ...]
    findings: tuple[Finding, ...]
    repaired: int = 0
    written: str = ""

    @property
    def ok(self) -> bool:
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)


def error(code: str, subject: str, message: str) -> Finding:
    return Finding(Severity.ERROR, code, subject, message)


def warning(code: str, subject: str, message: str) -> Finding:
    return Finding(Severity.WARNING, code, subject, message)
