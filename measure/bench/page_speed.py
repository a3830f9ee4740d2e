"""How long a page takes to open in Chromium, and to answer a mouse and a keyboard.

Files are written down by hand, with their record: transformer layers; a model that holds all of its modules itself;
one module that does everything itself. `open` is from the navigation until everything is drawn, the fastest of three.
An interaction is from the event until the frame after it is painted, redrawing included: letters of a search, what it
finds, the tree with arrows, branches, modules opened in the tree, the map and the dataflow, back, sizes, colours,
charts, light and dark, more rows of a table. Each is done several times; the median of the slowest kind, and the
slowest of all, are shown.
"""

from __future__ import annotations

import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, sync_playwright

import modelexport as mx
from measure.bench.synthetic_models import write_flat, write_layers, write_single
from measure.pages import Table
from modelexport.record.provenance import Provenance

OPEN_LIMIT, ANSWER_LIMIT, SIZE_LIMIT = 5.0, 200.0, 15_000_000
LIMITED = 20_000
_COLUMNS = ("graph", "nodes", "modules", "written in", "page", "open", "slowest kind (median)", "slowest of all")
_ROUNDS, _OPENED = 5, 3

# Waits for an event that a reader causes, for what the page makes of it, and for the next frame to be painted. What
# opens something changes the address, and the page follows when it hears of that.
_ARMED = """([kind, leads]) => { window.took = new Promise(done => addEventListener(kind, async event => {
    if (leads) await new Promise(heard => addEventListener('hashchange', heard, { once: true }));
    requestAnimationFrame(() => {
        const channel = new MessageChannel();
        channel.port1.onmessage = () => done(performance.now() - event.timeStamp);
        channel.port2.postMessage(0);
    });
}, { capture: true, once: true })) }"""


@dataclass(frozen=True)
class Shape:
    """A graph that is measured."""

    name: str
    nodes: int
    write: Callable[[int, Path], Provenance]


SHAPES = (
    Shape("layers", LIMITED, write_layers),
    Shape("modules side by side", LIMITED, write_flat),
    Shape("one module", LIMITED, write_single),
    Shape("layers", 50_000, write_layers),
)


@dataclass(frozen=True)
class Speed:
    """Seconds to write and to open, bytes, and milliseconds by kind of interaction."""

    name: str
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


def measure_page_speed() -> Table:
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        found = [_speed(shape, Path(folder), browser) for shape in SHAPES]
    text = (
        f"{(__doc__ or '').strip()}\n\nThe limits are for {LIMITED:,} nodes: {OPEN_LIMIT:.0f} s to open, "
        f"{ANSWER_LIMIT:.0f} ms for an interaction, {SIZE_LIMIT // 1_000_000} MB."
    )
    holds = all(one.holds for one, shape in zip(found, SHAPES, strict=True) if shape.nodes == LIMITED)
    return Table("Speed of the page", text, _COLUMNS, tuple(map(_row, found)), holds, tuple(map(_kinds, found)))


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
        found.name,
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
    return f"{found.name}, {found.nodes:,} nodes, medians in milliseconds: {', '.join(medians)}"


def _speed(shape: Shape, folder: Path, browser: Browser) -> Speed:
    path = folder / f"{shape.write.__name__}{shape.nodes}.onnx"
    record = shape.write(shape.nodes, path)
    began = time.perf_counter()
    result = mx.view(path)
    wrote = time.perf_counter() - began
    opened = min(_opened_afresh(browser, result.path) for _ in range(_OPENED))
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page_opened(page, result.path)
    answers = Reader(page).answers()
    page.close()
    return Speed(shape.name, len(record.nodes), len(record.hierarchy.modules), wrote, result.size, opened, answers)


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


class Reader:
    """Uses a page as people do, with a clock."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._times: dict[str, list[float]] = {}

    def answers(self) -> Mapping[str, list[float]]:
        """Milliseconds by kind of interaction; a kind that a page has nothing for is missing."""
        self._tree()
        self._search()
        self._charts()
        self._choices()
        self._rows()
        return self._times

    def _timed(self, name: str, action: Callable[[], object], kind: str, *, leads: bool = False) -> None:
        self._page.evaluate(_ARMED, [kind, leads])
        action()
        self._times.setdefault(name, []).append(float(self._page.evaluate("window.took")))

    def _pressed(self, name: str, key: str, *, leads: bool = False, kind: str = "keydown") -> None:
        self._timed(name, lambda: self._page.keyboard.press(key), kind, leads=leads)

    def _home(self) -> None:
        self._page.evaluate("location.hash = '#/'")
        self._page.wait_for_timeout(100)

    def _tree(self) -> None:
        rows = self._page.locator("#tree .row")
        if rows.count() < 2:
            return
        for _ in range(_ROUNDS):
            self._page.locator("#tree").focus()
            self._pressed("arrow in the tree", "ArrowDown")
            self._timed("module of the tree", rows.nth(1).locator(".name").click, "click", leads=True)
            self._pressed("module around", "u", leads=True)
            self._timed("back", lambda: self._page.evaluate("history.back()"), "popstate", leads=True)
            if rows.nth(1).locator(".twist:not(.leaf)").count():
                self._timed("branch", rows.nth(1).locator(".twist").click, "click")
            self._home()

    def _search(self) -> None:
        for words in ("query", "part77 relu", "softmax", "v1999", "add"):
            self._page.keyboard.press("/")
            for letter in words:
                self._pressed("letter of a search", letter, kind="input")
            if self._page.locator("#results [role=option]").count():
                self._pressed("what was found", "Enter", leads=True)
            else:
                self._page.keyboard.press("Escape")
        self._home()

    def _charts(self) -> None:
        """What leads somewhere: other boxes stand for what is too much to draw, and stay where they are."""
        for name, boxes in (
            ("module of the map", self._page.locator("#map .slice", has_text=re.compile("^layers$"))),
            (
                "part of the dataflow",
                self._page.locator("#flow .textpoint text", has_text=re.compile("^(layers.0|part0|Tanh)")),
            ),
        ):
            for _ in range(_ROUNDS):
                self._home()
                if boxes.count():
                    self._clicked(name, boxes.first)

    def _clicked(self, name: str, box: Locator) -> None:
        box.scroll_into_view_if_needed()
        frame = box.bounding_box()
        assert frame is not None
        x, y = frame["x"] + frame["width"] / 2, frame["y"] + frame["height"] / 2
        self._page.mouse.move(x, y)
        self._page.wait_for_timeout(100)  # plotly looks what is below the mouse when it rests
        self._timed(name, lambda: self._page.mouse.click(x, y), "mouseup", leads=True)

    def _choices(self) -> None:
        for name, values in (("size", ("parameters", "flops", "bytes", "nodes")), ("colour", ("confidence", "class"))):
            for value in values * 2:
                self._timed(name, partial(self._page.locator(f"#{name}").select_option, value), "change")
        for chart in ("treemap", "icicle") * 2:
            self._timed("chart", self._page.locator(f"[data-chart={chart}]").click, "click")
        self._page.locator("#tree").focus()
        for _ in range(_ROUNDS):
            self._pressed("light or dark", "t")

    def _rows(self) -> None:
        more = self._page.locator("#details .more:visible")
        for _ in range(_ROUNDS):
            if more.count():
                self._timed("more rows", more.first.click, "click")
