"""How long a page takes to open in Chromium, and to answer: transformer layers written down by hand, with their record.

`open` is from the navigation until everything is drawn, the fastest of three. An interaction is from the event until
the next frame is painted: a search, opening and closing a branch of the tree, opening a module, another size, another
colour, the other chart. Each is done several times; the median of the slowest kind, and the slowest of all, are shown.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

import modelexport as mx
from bench.relink_time import layers_model
from bench.report import Table
from modelexport.graph.embed import EmbedOptions, Level, embed
from modelexport.graph.index import Node, index_model
from modelexport.record.evidence import Attribution, Confidence, Evidence, EvidenceKind
from modelexport.record.hierarchy import CallSite, Hierarchy, Module, ModuleCall, TensorInfo
from modelexport.record.provenance import NodeEntry, Origin, Provenance

SIZES = (20_000, 50_000)
OPEN_LIMIT, ANSWER_LIMIT, SIZE_LIMIT = 5.0, 200.0, 15_000_000
_NODES_OF_LAYER = 19
_PARTS = ("query", "key", "value", "output", "up", "down")
_LINEAR = (TensorInfo("weight", (16, 16), "float32", 1024), TensorInfo("bias", (16,), "float32", 64))
_COLUMNS = ("nodes", "modules", "written in", "page", "open", "slowest kind (median)", "slowest of all")
_ROUNDS, _OPENED = 5, 3

# What a reader does, as what happens in the page; each is done with several values.
_SELECT = (
    "x => { const field = document.querySelector(x[0]); field.value = x[1]; field.dispatchEvent(new Event(x[2])) }"
)
_OPEN = "x => { location.hash = x[0]; return new Promise(done => addEventListener('hashchange', done, {once: true})) }"
_CLICK = "x => document.querySelector(x[0]).click()"
_TIMED = """async x => {
    const began = performance.now();
    await (%s)(x);
    await new Promise(done => requestAnimationFrame(() => {
        const channel = new MessageChannel();
        channel.port1.onmessage = done;
        channel.port2.postMessage(0);
    }));
    return performance.now() - began;
}"""


@dataclass(frozen=True)
class Speed:
    """Seconds to write and to open, bytes, and milliseconds by kind of interaction."""

    nodes: int
    modules: int
    write: float
    size: int
    open: float
    answers: Mapping[str, list[float]]

    @property
    def slowest(self) -> tuple[str, float]:
        medians = {kind: statistics.median(times) for kind, times in self.answers.items()}
        kind = max(medians, key=lambda name: medians[name])
        return kind, medians[kind]

    @property
    def holds(self) -> bool:
        return self.open <= OPEN_LIMIT and self.slowest[1] < ANSWER_LIMIT and self.size <= SIZE_LIMIT


def measure() -> Table:
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        found = [_speed(size, Path(folder), browser) for size in SIZES]
    text = (
        f"{(__doc__ or '').strip()}\n\nThe limits are for {SIZES[0]:,} nodes: {OPEN_LIMIT:.0f} s to open, "
        f"{ANSWER_LIMIT:.0f} ms for an interaction, {SIZE_LIMIT // 1_000_000} MB."
    )
    notes = tuple(_kinds(one) for one in found)
    return Table("Speed of the page", text, _COLUMNS, tuple(map(_row, found)), found[0].holds, notes)


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


def _row(found: Speed) -> tuple[str, ...]:
    kind, median = found.slowest
    worst = max(max(times) for times in found.answers.values())
    return (
        f"{found.nodes:,}",
        f"{found.modules:,}",
        f"{found.write:.1f} s",
        f"{found.size / 1e6:.1f} MB",
        f"{found.open:.1f} s",
        f"{kind}: {median:.0f} ms",
        f"{worst:.0f} ms",
    )


def _kinds(found: Speed) -> str:
    medians = (f"{kind} {statistics.median(times):.0f}" for kind, times in found.answers.items())
    return f"{found.nodes:,} nodes, medians in milliseconds: {', '.join(medians)}"


def _speed(size: int, folder: Path, browser: Browser) -> Speed:
    path = folder / f"{size}.onnx"
    record = deep_model(size, path)
    began = time.perf_counter()
    result = mx.view(path)
    wrote = time.perf_counter() - began
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    opened = min(_opened_afresh(browser, result.path) for _ in range(_OPENED))
    page_opened(page, result.path)
    answers = {kind: [_timed(page, script, values) for values in given] for kind, script, given in _interactions(size)}
    page.close()
    return Speed(len(record.nodes), len(record.hierarchy.modules), wrote, result.size, opened, answers)


def _opened_afresh(browser: Browser, path: Path) -> float:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    seconds = page_opened(page, path)
    page.close()
    return seconds


def page_opened(page: Page, path: Path, address: str = "") -> float:
    """Seconds until everything is drawn."""
    began = time.perf_counter()
    page.goto(path.as_uri() + address)
    page.wait_for_selector("body[data-ready]")
    return time.perf_counter() - began


def _timed(page: Page, script: str, values: list[str]) -> float:
    return float(page.evaluate(_TIMED % script, values))


def _interactions(size: int) -> Iterator[tuple[str, str, list[list[str]]]]:
    """Modules of the whole depth and width: all layers, one of them, and the smallest part."""
    last = size // _NODES_OF_LAYER
    yield (
        "search",
        _SELECT,
        [["#search", word, "input"] for word in ("query", "layers.77", "softmax", "matmul key", "q")],
    )
    yield "search cleared", _SELECT, [["#search", "", "input"]] * _ROUNDS
    yield "expand", _CLICK, [["#row-1 .twist"]] * _ROUNDS
    paths = ("layers", f"layers.{last // 2}", f"layers.{last}.query", "", "layers")
    yield "open a module", _OPEN, [[f"#/{path}"] for path in paths]
    yield "size", _SELECT, [["#size", name, "change"] for name in ("parameters", "flops", "bytes", "nodes", "flops")]
    yield "colour", _SELECT, [["#colour", name, "change"] for name in ("confidence", "class", "confidence", "class")]
    yield "chart", _CLICK, [[f"[data-chart={name}]"] for name in ("treemap", "icicle", "treemap", "icicle")]


def deep_model(size: int, path: Path) -> Provenance:
    """Write a tagged file of so many nodes, or a few more."""
    layers = -(-size // _NODES_OF_LAYER)
    model = layers_model(layers)
    graph = index_model(model)
    owners = {number: _calls(number) for number in range(layers)}
    record = Provenance(
        hierarchy=_hierarchy(layers),
        nodes={node.key: NodeEntry(node.key, node.name, node.op_type, _owned(node, owners)) for node in graph.nodes},
        initializers={name: _exact(ModuleCall(name.rpartition(".")[0])) for name in graph.initializers},
        origin=Origin("by hand", "by hand", graph.fingerprint),
    )
    embed(model, record, EmbedOptions(level=Level.LEAN), None)
    path.write_bytes(model.SerializeToString())
    return record


def _calls(number: int) -> dict[str, ModuleCall]:
    return {part: ModuleCall(f"layers.{number}.{part}") for part in _PARTS}


def _owned(node: Node, owners: Mapping[int, Mapping[str, ModuleCall]]) -> Attribution:
    """By the name that the node was given: `12/query/MatMul`, `12/Softmax`."""
    number, part, *_ = node.key.split("/")
    return _exact(owners[int(number)].get(part, ModuleCall(f"layers.{number}")))


def _exact(call: ModuleCall) -> Attribution:
    return Attribution((call,), call, Confidence.EXACT, (Evidence(EvidenceKind.SCOPE, "by hand"),))


def _hierarchy(layers: int) -> Hierarchy:
    root = ModuleCall("")
    modules = [Module("", "Layers", "bench"), Module("layers", "ModuleList", "torch.nn", container=True)]
    calls = [CallSite(root, None)]
    for number in range(layers):
        layer = ModuleCall(f"layers.{number}")
        modules.append(Module(layer.path, "Layer", "bench"))
        calls.append(CallSite(layer, root))
        for call in _calls(number).values():
            modules.append(Module(call.path, "Linear", "torch.nn", _LINEAR))
            calls.append(CallSite(call, layer))
    return Hierarchy.of(modules, calls)
