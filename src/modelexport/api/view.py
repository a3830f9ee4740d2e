"""View: one HTML page about a file or a package, without a server: modules, sizes, dataflow, cost, differences.

    view("bert.onnx", overlays=["profile.json"])      # bert.html, modules coloured by their time
    view(open_package("qwen3/"))                      # qwen3.html, with a switch between its files

On the page of a package, what is opened is a module path, which means the same module in every file: the switch keeps
it. Nothing here needs torch or runs a model, and only comparing two files reads weights.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from modelexport.api.opening import note_source, open_file
from modelexport.api.package import Component, Package, ensure_packages, find_package, open_files
from modelexport.api.package_reading import ensure_package_axes, share_overlay_paths
from modelexport.api.read import ensure_axes, ensure_sizes
from modelexport.api.writing import ensure_spared
from modelexport.errors import some_of
from modelexport.graph.file.atomic import write_atomically
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.types import AxisSizes, input_dims
from modelexport.inspect.cost.totals import count
from modelexport.inspect.package.cost import count_package
from modelexport.record.results.cost import Cost
from modelexport.show.data.overlays import Overlay, Profiled, read_overlay
from modelexport.show.page.data import MOST_NODES, PageSubject, page_data
from modelexport.show.page.html import PageServer, page_html, plotly_script
from modelexport.show.page.nodes import Json

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
    file: str | Path | Package,
    output: str | Path | None = None,
    *,
    overlays: Sequence[str | Path] = (),
    against: str | Path | Package | None = None,
    at: Mapping[str, int] | None = None,
) -> ViewResult:
    """Write one page that shows a file or a package: modules, sizes, dataflow, and how well everything is known.

    output    beside the file or the folder, with the ending .html, where it is left out
    overlays  what `profile` and `verify` wrote as JSON; in a package, each is laid over the file that it is about
    against   another file or package; modules are coloured by how they differ from it
    at        sizes of axes that the file leaves open, for FLOPs
    """
    file, against = find_package(file) or file, against and (find_package(against) or against)
    target = page_path(file) if output is None else Path(output)
    inputs = [path for source in (file, *overlays, against) if source is not None for path in _files_of(source)]
    ensure_spared([target], inputs)
    page = make_page(file, overlays=overlays, against=against, at=at)
    data = page.html.encode()
    write_atomically(target, data)
    return ViewResult(target, len(data), page)


def _files_of(source: str | Path | Package) -> tuple[Path, ...]:
    return source.files if isinstance(source, Package) else (Path(source),)


def page_path(file: str | Path | Package) -> Path:
    if isinstance(file, Package):
        folder = file.folder if file.folder.name not in ("", "..") else file.folder.resolve()
        return folder.with_name(f"{folder.name}.html")
    return Path(file).with_suffix(".html")


def make_page(
    file: str | Path | Package,
    *,
    overlays: Sequence[str | Path] = (),
    against: str | Path | Package | None = None,
    at: Mapping[str, int] | None = None,
) -> Page:
    plotly_script()  # what is not installed is said before anything is computed
    sizes = dict(at or {})
    ensure_sizes(sizes, least=1)
    overlay_paths = [Path(overlay) for overlay in overlays]
    file, against = find_package(file) or file, against and (find_package(against) or against)
    if isinstance(file, Package) or isinstance(against, Package):
        if isinstance(file, Package) and against is None:
            return _make_package_page(file, overlay_paths, None, sizes)
        package, other = ensure_packages(file, against or "nothing")
        return _make_package_page(package, overlay_paths, other, sizes)
    path = Path(file)
    opened = open_file(path)
    laid = [read_overlay(overlay, opened.provenance.hierarchy) for overlay in overlay_paths]
    # Without sizes: amounts stay polynomials, and the page has the sizes at which they are evaluated beside them.
    cost = count(str(file), opened, opened.provenance, {})
    ensure_axes(cost, sizes)
    compared = None if against is None else Path(against)
    subject = _describe_subject(opened, cost, sizes, laid, compared)
    return _fit_page([subject], lambda nodes, notes: page_html(path.name, _subject_data(subject, nodes, notes)))


def _subject_data(subject: PageSubject, nodes: bool, notes: Sequence[str]) -> Json:
    """The data of one file, with these notes before its own."""
    return page_data(replace(subject, notes=(*notes, *subject.notes)), nodes=nodes)


def _describe_subject(
    opened: TaggedFile, cost: Cost, at: Mapping[str, int], overlays: Sequence[Overlay], against: Path | None
) -> PageSubject:
    """All that a page says of a file."""
    sizes = _axis_sizes(opened, cost, at)
    differences = None
    if against is not None:
        from modelexport.api.diff import diff  # links two graphs, which a page alone has no use for

        differences = diff(against, opened.path)
    facts = tuple(_facts(opened, cost, sizes))
    notes = (*_notes(opened), *_overlay_notes(opened.path, overlays))
    return PageSubject(opened.path.name, opened, facts, notes, cost, sizes, overlays, differences)


def _make_package_page(
    package: Package, overlays: Sequence[Path], against: Package | None, at: Mapping[str, int]
) -> Page:
    """The page of a package; `against` is another one, compared component by component."""
    files = open_files(package)
    # Without sizes, as in the page of a file; names of axes are checked over all files.
    counted = count_package(str(package.folder), package.info, files, {})
    ensure_package_axes(counted, at)
    laid = share_overlay_paths(package, overlays)
    notes = tuple(_note_absent(package))
    subjects = {}
    for name, component in package.components.items():
        hierarchy = component.provenance.hierarchy
        own = [read_overlay(path, hierarchy) for path in laid.get(name, ())]
        subject = _describe_component(component, counted.components[name], at, own, against)
        subjects[name] = replace(subject, notes=(*notes, *subject.notes))

    def write(nodes: bool, notes: Sequence[str]) -> str:
        return page_html(package.folder.resolve().name, _join_data(subjects, nodes, notes))

    return _fit_page(list(subjects.values()), write)


def _join_data(subjects: Mapping[str, PageSubject], nodes: bool, notes: Sequence[str]) -> Json:
    data = ((name, _subject_data(subject, nodes, notes)) for name, subject in subjects.items())
    return {"components": [{"name": name, "data": document} for name, document in data]}


def _describe_component(
    component: Component, cost: Cost, at: Mapping[str, int], overlays: Sequence[Overlay], other: Package | None
) -> PageSubject:
    names = {axis.name for axis in cost.axes}
    sizes = {name: size for name, size in at.items() if name in names}
    against = other[component.name].path if other is not None and component.name in other else None
    return _describe_subject(component.file, cost, sizes, overlays, against)


def _note_absent(package: Package) -> Iterator[str]:
    for module in package.info.absent:
        yield f"{module.path or '(model)'} ({module.class_name}) is in no file of the package: {module.reason}."


def serve_page(page: Page, port: int, announce: Callable[[str], object]) -> None:
    """Serve a page on this machine until somebody interrupts or ends it; `announce` gets its address."""
    with PageServer(page.html, port) as server, suppress(KeyboardInterrupt), _interrupted_by_signals():
        announce(server.url)
        server.serve_forever()


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """By Ctrl-C and `kill`, also where a shell had them ignored (`&`): nothing else would end it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _fit_page(subjects: Sequence[PageSubject], write: Callable[[bool, Sequence[str]], str]) -> Page:
    """With nodes if that is not too much for one page. `write` makes it with nodes or without, and with these notes."""
    nodes = sum(len(subject.file.provenance.nodes) for subject in subjects)
    notes = tuple(dict.fromkeys(note for subject in subjects for note in subject.notes))
    reason = f"{nodes:,} nodes are more than the {MOST_NODES:,} that fit on one page"
    if nodes <= MOST_NODES:
        page = write(True, ())
        if len(page.encode()) <= MOST_BYTES:
            return Page(page, nodes, True, notes)
        reason = f"with all of its nodes, the page would be larger than {MOST_BYTES // 1_000_000} MB"
    left_out = f"Modules alone are shown: {reason}."
    return Page(write(False, (left_out,)), nodes, False, (left_out, *notes))


def _axis_sizes(opened: TaggedFile, cost: Cost, at: Mapping[str, int]) -> dict[str, int]:
    """The sizes that were asked for, and usual ones for other axes of the inputs."""
    names = [axis.name for axis in cost.axes]
    inputs = {value.name: value for value in opened.sized_proto.graph.input}
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
