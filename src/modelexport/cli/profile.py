"""`modelexport profile`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from modelexport.cli.options import Speech, format_option, output_option, spare_inputs, speech_options
from modelexport.cli.running import quiet_run

if TYPE_CHECKING:
    from modelexport.record.profile import Profile

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("file", metavar="FILE", type=_FILE)
@click.option(
    "--before", type=_FILE, metavar="FILE", help="A tagged file that FILE was made from; asked instead of its record."
)
@click.option("--runs", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="Runs that count.")
@click.option(
    "--warmup", type=click.IntRange(min=0), default=5, show_default=True, metavar="N", help="Runs before them."
)
@click.option(
    "--optimization",
    type=click.Choice(["all", "extended", "basic", "none"]),
    default="all",
    show_default=True,
    help="How far ONNX Runtime optimizes the file before it runs it.",
)
@click.option("--providers", metavar="NAMES", default="", help="Of ONNX Runtime, the preferred first: CUDA,CPU.")
@click.option("--threads", type=click.IntRange(min=0), default=0, metavar="N", help="Threads for one operator; 0: all.")
@click.option("--inputs", type=_FILE, metavar="FILE", help="An .npz file with the inputs themselves.")
@click.option("--input", multiple=True, metavar="NAME=SHAPE", help="Make this input in this shape; repeatable.")
@click.option("--seed", type=int, default=0, show_default=True, help="For the inputs that are made.")
@click.option("--trace", type=_FILE, metavar="FILE", help="Write a trace for Perfetto or speedscope.")
@click.option("--depth", type=click.IntRange(min=0), metavar="N", help="Show so many levels of modules.")
@click.option("--all", "everything", is_flag=True, help="Show all modules.")
@output_option("Write to FILE instead of standard output.")
@format_option("text", "json", "csv")
@speech_options
def profile(*, file: Path, providers: str, trace: Path | None, speech: Speech, **options: Any) -> int:
    """Run FILE in ONNX Runtime and show in which module its time goes.

    \b
    modelexport profile bert.onnx --runs 50
    modelexport profile bert.int8.onnx --trace trace.json

    The graph that ONNX Runtime really ran is traced back to the modules. What one kernel does for several modules is
    charged to the module around them, and shown as shared.

    \b
    exit codes  0  done
                1  what modules are charged with is not what ONNX Runtime's trace adds up to
                2  the file, its record, the inputs or a provider cannot be used
    """
    from modelexport.api.profile import profile as profile_file

    shown = {name: options.pop(name) for name in ("form", "output", "depth", "everything")}
    given = [path for path in (file, options["before"], options["inputs"]) if path is not None]
    spare_inputs(shown["output"], *given)
    spare_inputs(trace, *given)
    _ensure_targets(shown["output"], trace)
    names = [name.strip() for name in providers.split(",") if name.strip()]
    with quiet_run(speech) as progress:
        found = profile_file(file, providers=names, progress=progress, **options)
    if trace is not None:
        from modelexport.views.output import emit
        from modelexport.views.profile_trace import profile_trace

        emit(profile_trace(found), trace)
    _show(found, speech, **shown)
    return 0 if found.check.holds else 1


def _ensure_targets(*paths: Path | None) -> None:
    """Fail before anything runs, and before one file is written without the other."""
    from modelexport.views.output import ensure_targets

    ensure_targets([path for path in paths if path is not None])


def _show(
    found: Profile, speech: Speech, *, form: str, output: Path | None, depth: int | None, everything: bool
) -> None:
    if form == "text":
        if output is not None or not speech.quiet:
            from modelexport.views.console import show
            from modelexport.views.profile_tables import profile_tables

            show(profile_tables(found, depth=depth, everything=everything, verbose=speech.verbose), output)
        return
    from modelexport.views.output import emit
    from modelexport.views.profile_data import profile_csv, profile_json

    emit(profile_json(found) if form == "json" else profile_csv(found), output)
