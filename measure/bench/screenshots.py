"""Pictures of the page for the documentation: `make screenshots` writes docs/images.

The model is a small BERT with random weights, which anybody can export in seconds; what is laid over it is measured.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser
from tests.support.architectures import build

import modelexport as mx
from measure.bench.page_speed import chromium, page_opened
from measure.catalogue import Options
from modelexport.show.data.results import to_json

IMAGES = Path(__file__).parents[2] / "docs" / "images"
LARGEST = 250_000


@dataclass(frozen=True)
class Shot:
    """One picture: what is opened, in which colours, and what is chosen."""

    name: str
    address: str
    scheme: str = "light"
    size: tuple[int, int] = (1280, 800)
    colour: str = "class"
    chart: str = "icicle"
    pane: str = ""


SHOTS = (
    Shot("view-light", "#/encoder.layer.0.attention.self"),
    Shot("view-dark", "#/encoder", "dark", colour="time"),
    Shot("view-treemap", "#/", chart="treemap"),
    Shot("view-phone", "#/encoder.layer.0.attention.self", size=(390, 780), pane="flow"),
)


def run_measure(options: Options) -> int:
    names = options.pick_rows(tuple(shot.name for shot in SHOTS))
    shots = [shot for shot in SHOTS if shot.name in names]
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        path = _page(Path(folder))
        for shot in shots:
            _take(browser, path, shot)
    large = [shot.name for shot in shots if _target(shot).stat().st_size > LARGEST]
    if large:
        sys.stderr.write(f"larger than {LARGEST // 1000} KB: {', '.join(large)}\n")
    return 1 if large else 0


def _page(folder: Path) -> Path:
    model = mx.export(build("bert"), folder / "bert.onnx", no_check=True).path
    profile = folder / "profile.json"
    profile.write_text(to_json(mx.profile(model)))
    return mx.view(model, overlays=[profile], at={"batch": 1, "sequence": 128}).path


def _target(shot: Shot) -> Path:
    return IMAGES / f"{shot.name}.png"


def _take(browser: Browser, path: Path, shot: Shot) -> None:
    width, height = shot.size
    page = browser.new_page(viewport={"width": width, "height": height})
    page.emulate_media(color_scheme="dark" if shot.scheme == "dark" else "light")
    page_opened(page, path, shot.address)
    if shot.pane:
        page.locator(f".panes [data-pane={shot.pane}]").click()
    else:
        page.locator("#colour").select_option(shot.colour)
        page.locator(f"[data-chart={shot.chart}]").click()
    page.mouse.move(2, 2)
    page.wait_for_timeout(500)  # until what plotly moves has come to rest
    page.screenshot(path=_target(shot))
    page.close()
