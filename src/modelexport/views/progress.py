"""Progress of a long command, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from modelexport.views.printable import printable

_WORDS = {
    "load": "loading the model",
    "inputs": "making inputs",
    "trace": "running the model once",
    "export": "exporting",
    "attribute": "attributing nodes",
    "write": "writing",
    "check": "comparing outputs with PyTorch",
    "parameters": "comparing weights",
    "model": "running the model, every operator recorded",
    "file": "running the file and comparing its values",
    "proof": "proving attributions",
}


@contextmanager
def shown_progress() -> Iterator[Callable[[str], None]]:
    """A function to call with the name of each step; the step and the time since the start are shown."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda step: progress.update(task, description=printable(_WORDS.get(step, step)))
