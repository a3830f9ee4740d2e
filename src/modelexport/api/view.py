"""View: one HTML page about a file, without a server: modules, sizes, dataflow, cost, overlays, differences.

    view("bert.onnx", overlays=["profile.json"])      # bert.html, modules coloured by their time

Nothing here needs torch or runs a model, and only comparing two files reads weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from modelexport.api.opening import note_source, open_file
from modelexport.api.read import ensure_axes, ensure_sizes
from modelexport.api.writing import ensure_spared
from modelexport.errors import some_of
from modelexport.graph.file.atomic import write_atomically
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.types import AxisSizes, input_dims
from modelexport.inspect.cost.totals import count
from modelexport.record.results.cost import Cost
from modelexport.show.data.overlays import Overlay, Profiled, read_overlay
from modelexport.show.page.data import MOST_NODES, PageSubject, page_data
from modelexport.show.page.html import PageServer, page_html, plotly_script

MOST_BYTES = 15_000_000


@dataclass(frozen=True)
class Page:
    """A page as text.

    has_nodes  False if it shows modules alone, because there are too many nodes
    notes      what it says about itself at its head
    """

    html: str
    nodes: int
    has_nodes: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ViewResult:
    path: Path
    size: int
    page: Page


def view(
    file: str | Path,
    output: str | Path | None = None,
    *,
    overlays: Sequence[str | Path] = (),
    against: str | Path | None = None,
    at: Mapping[str, int] | None = None,
) -> ViewResult:
    """Write one page that shows a file: modules, sizes, dataflow, and how well everything is known.

    output    beside the file, with the ending .html, where it is left out
    overlays  what `profile` and `verify` wrote as JSON
    against   another file; modules are coloured by how they differ from it
    at        sizes of axes that the file leaves open, for FLOPs
    """
    target = page_path(file) if output is None else Path(output)
    inputs = (Path(path) for path in (file, *overlays, against) if path is not None)
    ensure_spared([target], inputs)
    page = make_page(file, overlays=overlays, against=against, at=at)
    data = page.html.encode()
    write_atomically(target, data)
    return ViewResult(target, len(data), page)


def page_path(file: str | Path) -> Path:
    return Path(file).with_suffix(".html")


def make_page(
    file: str | Path,
    *,
    overlays: Sequence[str | Path] = (),
    against: str | Path | None = None,
    at: Mapping[str, int] | None = None,
) -> Page:
    plotly_script()  # what is not installed is said before anything is computed
    path = Path(file)
    opened = open_file(path)
    record = opened.provenance
    laid = [read_overlay(Path(overlay), record.hierarchy) for overlay in overlays]
    # Without sizes: amounts stay polynomials, and the page has the sizes at which they are evaluated beside them.
    cost = count(str(file), opened, record, {})
    sizes = _axis_sizes(opened, cost, dict(at or {}))
    differences = None
    if against is not None:
        from modelexport.api.diff import diff  # links two graphs, which a page alone has no use for

        differences = diff(Path(against), path)
    facts, notes = tuple(_facts(opened, cost, sizes)), (*_notes(opened), *_overlay_notes(path, laid))
    return _fit_page(PageSubject(path.name, opened, facts, notes, cost, sizes, laid, differences))


def serve_page(page: Page, port: int, announce: Callable[[str], object]) -> None:
    """Serve a page on this machine until somebody interrupts; `announce` gets its address."""
    with PageServer(page.html, port) as server:
        announce(server.url)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _fit_page(subject: PageSubject) -> Page:
    """With nodes if that is not too much for one page."""
    nodes = len(subject.file.provenance.nodes)
    reason = f"{nodes:,} nodes are more than the {MOST_NODES:,} that fit on one page"
    if nodes <= MOST_NODES:
        page = page_html(subject.name, page_data(subject))
        if len(page.encode()) <= MOST_BYTES:
            return Page(page, nodes, True, tuple(subject.notes))
        reason = f"with all of its nodes, the page would be larger than {MOST_BYTES // 1_000_000} MB"
    notes = (f"Modules alone are shown: {reason}.", *subject.notes)
    page = page_html(subject.name, page_data(replace(subject, notes=notes), nodes=False))
    return Page(page, nodes, False, notes)


def _axis_sizes(opened: TaggedFile, cost: Cost, at: dict[str, int]) -> dict[str, int]:
    """The sizes that were asked for, and usual ones for other axes of the inputs."""
    ensure_sizes(at, least=1)
    ensure_axes(cost, at)
    names = [axis.name for axis in cost.axes]
    inputs = {value.name: value for value in opened.proto.graph.input}
    usual = AxisSizes(inputs, {})
    sizes: dict[str, int] = {}
    for name, value in inputs.items():
        pairs = zip(input_dims(value) or (), usual.shape(name) or (), strict=False)
        sizes.update({dim: size for dim, size in pairs if isinstance(dim, str) and dim in names})
    return {**sizes, **at}


def _facts(opened: TaggedFile, cost: Cost, sizes: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    origin = opened.provenance.origin
    if origin.is_file:
        yield "hierarchy", origin.source_text
    else:
        yield "exporter", origin.exporter
        yield "strategy", origin.strategy
    yield "model", origin.model
    yield "opsets", ", ".join(f"{item.domain or 'ai.onnx'} {item.version}" for item in opened.proto.opset_import)
    yield "made with", ", ".join(f"{name} {version}" for name, version in origin.tools.items())
    shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
    yield "FLOPs", "; ".join(filter(None, (f"at {shown}" if shown else "", _uncounted(cost))))
    yield "graph", opened.graph.fingerprint


def _uncounted(cost: Cost) -> str:
    """`3 nodes not counted: there is no rule for Scaler`: nodes whose FLOPs are not known, frequent reasons first."""
    reasons = Counter(node.reason or "no reason is known" for node in cost.nodes if node.flops is None)
    if not reasons:
        return ""
    nodes = "1 node" if reasons.total() == 1 else f"{reasons.total()} nodes"
    return f"{nodes} not counted: {some_of([reason for reason, _ in reasons.most_common()])}"


def _notes(opened: TaggedFile) -> Iterator[str]:
    yield from note_source(opened)
    yield from opened.stale_notes
    if opened.proto.functions:
        yield (
            "The file has functions. What is in one is shown once, however often it is called: "
            "`modelexport flatten` puts it back in every place."
        )


def _overlay_notes(path: Path, overlays: Sequence[Overlay]) -> Iterator[str]:
    last = {type(overlay): overlay for overlay in overlays}
    if len(last) < len(overlays):
        yield "Several overlays of one kind were given: the last one is shown."
    for overlay in last.values():
        what = "Time" if isinstance(overlay, Profiled) else "Error"
        if Path(overlay.file).name != path.name:
            yield f"{what} is that of {Path(overlay.file).name}."
        yield from overlay.notes
