"""The page of a fleet: one table of models and steps, and below it what went wrong.

It is one file without scripts, like that of `diff --format html`, beside the files of the rows, to which it leads:
to the page of each model, and to report and log of each step. Names and reasons come from files and from models: every
text is escaped, and links are only made of names that are safe in paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from urllib.parse import quote

from modelexport.errors import printable, printable_line
from modelexport.record.limits import MESSAGE_CHARACTERS
from modelexport.record.results.fleet import FleetResult, FleetRow, StepResult, StepStatus
from modelexport.show.page.html import static_page
from modelexport.show.text.console import bytes_text
from modelexport.show.text.fleet import summary_text

_PAGE, _LOG, _REPORT = "page.html", "log.txt", "report.json"
# Of `page.css`: what was added is green there, what changed yellow, and what is gone red.
_COLOURS = {StepStatus.OK: "added", StepStatus.FOUND: "changed", StepStatus.SKIPPED: "muted"}


def fleet_page(result: FleetResult) -> str:
    body = [f"<h1>{_safe(result.name)}</h1>", f"<p>{_safe(summary_text(result))}</p>"]
    body += [f'<p class="muted">{_safe(note)}</p>' for note in result.notes]
    if result.faulty:
        body += ["<h2>What is wrong</h2>", *map(_fault, result.faulty)]
    body += [
        "<h2>Models and steps</h2>",
        "<table>",
        _head(result),
        *(_row(result, row) for row in result.rows),
        "</table>",
    ]
    changed = list(_changes(result))
    if changed:
        body += ["<h2>Since the last run</h2>", f"<ul>{''.join(changed)}</ul>"]
    return static_page(printable(f"{result.name}: fleet"), "\n".join(body))


def _head(result: FleetResult) -> str:
    cells = ("model", *result.steps, "nodes", "size", "time", "memory")
    return f"<tr>{''.join(f'<th>{_safe(cell)}</th>' for cell in cells)}</tr>"


def _row(result: FleetResult, row: FleetRow) -> str:
    steps = [row.steps.get(name) for name in result.steps]
    known = [step for step in steps if step is not None]
    nodes = next((step.figures["nodes"] for step in known if "nodes" in step.figures), None)
    size = next((total for step in known if (total := step.model_bytes)), 0)
    peaks = [step.peak_bytes for step in known if step.peak_bytes is not None]
    cells = [
        f'<td title="{_safe(row.source)}">{_model_link(row)}</td>',
        *(f"<td>{_step(result, step)}</td>" for step in steps),
        f"<td>{'' if nodes is None else f'{nodes:,}'}</td>",
        f"<td>{_safe(bytes_text(size)) if size else ''}</td>",
        f"<td>{sum(step.seconds for step in known):.1f} s</td>",
        f"<td>{_safe(bytes_text(max(peaks))) if peaks else ''}</td>",
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _model_link(row: FleetRow) -> str:
    """To its page of `view`, if there is one."""
    for step in row.steps.values():
        if step.verb == "view" and step.status.has_output:
            return _link(row.name, step.step, _PAGE, row.name)
    return _safe(row.name)


def _step(result: FleetResult, step: StepResult | None) -> str:
    if step is None:
        return '<span class="muted">not run</span>'
    if step.status is StepStatus.SKIPPED:
        return '<span class="muted">skipped</span>'
    # Where to read on: what it found, or what it said at its end.
    file = _REPORT if step.status.has_output and _REPORT in step.files else _LOG
    seconds = f" {step.seconds:.1f} s"
    trend = result.trend(step)
    below = f'<span class="below">{_safe(trend)}</span>' if trend else ""
    colour = _COLOURS.get(step.status, "removed")
    return f'<span class="state {colour}">{_link(step.row, step.step, file, str(step.status))}</span>{seconds}{below}'


def _fault(row: FleetRow) -> str:
    """Every step that is not ok, and every budget that is broken, with where to read on."""
    lines = []
    for step in row.steps.values():
        if step.status is not StepStatus.OK:
            log = "" if step.status is StepStatus.SKIPPED else f" ({_link(step.row, step.step, _LOG, 'log')})"
            lines.append(f"{_safe(f'{step.step} {step.status}: {step.reason}')}{log}")
    lines += [f"budget: {_safe(str(broken))}" for broken in row.broken]
    lines += [f"{_safe(name)} was not run" for name in row.missing]
    items = "".join(f"<li>{line}</li>" for line in lines)
    return f'<details class="removed" open><summary><code>{_safe(row.name)}</code></summary><ul>{items}</ul></details>'


def _changes(result: FleetResult) -> Iterator[str]:
    for step in result.results:
        if trend := result.trend(step):
            yield f"<li>{_safe(f'{step.row} {step.step}: {trend}')}</li>"


def _link(row: str, step: str, file: str, text: str) -> str:
    return f'<a href="rows/{quote(row)}/{quote(step)}/{quote(file)}">{_safe(text)}</a>'


def _safe(text: str) -> str:
    return escape(printable(printable_line(text, MESSAGE_CHARACTERS)))
