"""Third-party calls: transformers and the hub client, kept quiet, and with their errors turned into ours.

    with quiet_transformers(), seed_torch(0), explain_failure("transformers cannot load 'x'"):
        builder.from_pretrained(…)        no progress bars or warnings, missing weights are the same each time,
                                          and OSError("…") becomes ModelUnloadable("transformers cannot load 'x': …")

Nothing else in loading/ imports transformers by itself: `library` does, and says what to install if it is missing.
`LoadedModel` is what every loader returns.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.silence import SharedSetting, silence_loggers
from modelexport.errors import ExtraMissing, ModelExportError, ModelUnloadable
from modelexport.graph.file.checkpoint import Checkpoint


@dataclass(frozen=True)
class LoadedModel:
    """A module in eval mode.

    `folder` is the local folder, None for hub ids and callables; `processing` is where a tokenizer or a
    processor may be found: the folder or the hub id. `inputs` are the keyword inputs that a callable returned
    with its module. `notes` are what the user should know, such as random weights. `dtype` is the type that weights
    were put into, and inputs have to be in; None where they have their own. `parts` are the inputs of each child of the
    module, where a callable returned several modules: then it is never called as a whole (`parts.py`).
    `entries` are the entry points of a model that is loaded with them: each becomes a file.
    `kind` is what they are together, and `beside` are files of the folder that a package of them has as well.
    `checkpoint` has the weights of a module without numbers.
    """

    module: torch.nn.Module
    source: str
    folder: Path | None = None
    inputs: Mapping[str, object] | None = None
    notes: tuple[str, ...] = ()
    processing: str | Path | None = None
    dtype: torch.dtype | None = None
    parts: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    entries: tuple[EntryPoint, ...] = ()
    kind: str = ""
    beside: tuple[Path, ...] = ()
    checkpoint: Checkpoint | None = None


_LONGEST_REASON = 600  # characters: transformers lists every class that it knows in some of its errors
_PROBE_SECONDS = 5


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence progress bars, load reports and warnings of transformers; its settings are put back after."""
    with _NO_PROGRESS_BARS.hold(), silence_loggers("transformers", "huggingface_hub"):
        yield


def _disable_progress_bars() -> Callable[[], object]:
    """Each library has a switch of its own for progress bars, beside the level of its logger."""
    reports, hub = library("transformers.utils.logging"), library("huggingface_hub.utils")
    enabling = [
        enable
        for enable, is_enabled in (
            (reports.enable_progress_bar, reports.is_progress_bar_enabled()),
            (hub.enable_progress_bars, not hub.are_progress_bars_disabled()),
        )
        if is_enabled
    ]
    reports.disable_progress_bar()
    hub.disable_progress_bars()
    return lambda: [enable() for enable in enabling]


_NO_PROGRESS_BARS = SharedSetting(_disable_progress_bars)


@contextmanager
def explain_failure(failure: str, hint: str | Callable[[Exception], str] = "") -> Iterator[None]:
    """Re-raise whatever the code inside raises as ModelUnloadable, with its reason kept.

    hint  or what makes it of the error
    """
    try:
        with explain_exit(failure):
            yield
    except ModelExportError:
        raise
    except ImportError as error:
        raise ExtraMissing(f"{failure}: {summarize_error(error)}", "Install the package that it names.") from error
    except Exception as error:
        raise ModelUnloadable(
            f"{failure}: {summarize_error(error)}", hint if isinstance(hint, str) else hint(error)
        ) from error


@contextmanager
def explain_exit(failure: str) -> Iterator[None]:
    """ModelUnloadable for code that calls `sys.exit`: the program would end as if all were well."""
    try:
        yield
    except SystemExit as error:
        reason = f"the code ends the program, sys.exit({'' if error.code is None else error.code!r})"
        raise ModelUnloadable(f"{failure}: {reason}", "Take that call out of the code that is loaded.") from error


def summarize_error(error: BaseException) -> str:
    """An error without the advice that transformers puts behind it, a blank line between. For torch: `root_cause`."""
    paragraph = str(error).strip().split("\n\n")[0].strip()
    text = " ".join(paragraph.split()) or "no reason given"
    shortened = text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + " …"
    return f"{shortened} ({type(error).__name__})"


def library(name: str) -> Any:
    """A module of transformers or of the hub client, untyped: their lazy modules hide what they export."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ExtraMissing(
            f"{name} cannot be imported: {summarize_error(error)}", "pip install 'modelexport[export]'"
        ) from error


def optional_library(name: str) -> Any:
    """A library that only some kinds of models need."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        remedy = f"pip install {name.replace('_', '-')}"
        raise ExtraMissing.of_import("loading this model", name, error, remedy) from error


def hub_is_reachable() -> bool:
    """One quick question first: transformers alone would retry for half a minute before it says offline."""
    constants = library("huggingface_hub.constants")
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        library("huggingface_hub.utils").get_session().head(constants.ENDPOINT, timeout=_PROBE_SECONDS)
    except Exception:  # noqa: BLE001 - whatever the HTTP library raises means the same: no answer
        return False
    return True
