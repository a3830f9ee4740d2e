"""A profile for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from modelexport.record.profile import ModuleTime, Profile, SharedTime
from modelexport.record.provenance import is_within
from modelexport.views.amounts import counted, share_text
from modelexport.views.console import plain, table

# Modules that take less than this share of the time are left out, unless all are asked for.
_SMALL = 0.005
_OPERATORS, _SHARED, _SHARERS = 3, 3, 4


def profile_tables(
    profile: Profile, *, depth: int | None = None, everything: bool = False, verbose: bool = False
) -> Iterator[RenderableType]:
    yield _head(profile)
    yield Text()
    yield _modules(profile, depth, everything)
    yield plain(f"{share_text(profile.attributed)} of the time of all kernels belongs to a module", "dim")
    yield from (plain(f"note: {note}", "yellow") for note in profile.notes)
    if verbose and profile.seconds:
        yield plain(", ".join(f"{step} {seconds:.1f} s" for step, seconds in profile.seconds.items()), "dim")


def _head(profile: Profile) -> Text:
    providers = ", ".join(name.removesuffix("ExecutionProvider") for name in profile.providers)
    parts = (
        profile.file,
        f"{counted(profile.runs, 'run')} after {profile.warmup} to warm up",
        f"optimization {profile.optimization}",
        providers,
        f"{time_text(profile.wall)} a run (± {profile.spread / 2:.0%}), {time_text(profile.time)} in kernels",
    )
    return plain(" · ".join(parts), "bold")


def _modules(profile: Profile, depth: int | None, everything: bool) -> Table:
    several = len({name for module in profile.modules for name in module.providers}) > 1
    columns = ["module", "time", "self", "±", "nodes", "operators"]
    found = table("", *columns, *(["providers"] if several else []), right=("time", "self", "±", "nodes"))
    for above, module in _shown(profile, depth, everything):
        row: list[RenderableType] = [
            plain("  " * len(above) + _name(module, above)),
            f"{module.time / profile.time:.1%}" if profile.time else "",
            f"{module.own / profile.time:.1%}" if profile.time and module.own else "",
            f"{module.spread / 2:.0%}",
            f"{module.nodes:,}",
            plain(_details(module, profile.time), "dim"),
        ]
        found.add_row(*row, *([plain(_providers(module))] if several else []))
    return found


def _shown(profile: Profile, depth: int | None, everything: bool) -> Iterator[tuple[list[str], ModuleTime]]:
    """Modules that have something to say, with the paths of those around them that are shown."""
    above: list[str] = []
    for module in profile.modules:
        path = module.path
        if path is None:
            yield [], module
            continue
        above = [one for one in above if is_within(path, one)]
        dull = module.time < _SMALL * profile.time or _is_empty(module)
        if (dull and not everything) or (depth is not None and len(above) > depth):
            continue
        yield above, module
        above = [*above, path]


def _is_empty(module: ModuleTime) -> bool:
    """A container whose time is that of the modules inside of it, like `encoder.layer`."""
    return bool(module.path) and not module.own and module.class_name in ("ModuleList", "ModuleDict")


def _name(module: ModuleTime, above: Sequence[str]) -> str:
    if module.path is None:
        return "(no module)"
    return _relative(module.path, above[-1]) if above else module.path or module.class_name


def _relative(path: str, above: str) -> str:
    """A path as it is called inside of another one; that one itself by its last name."""
    return path.rpartition(".")[2] if path == above else path.removeprefix(f"{above}.") if above else path


def _details(module: ModuleTime, whole: float) -> str:
    """Its operators, and what the modules inside of it have in common."""
    names = list(module.operators)
    more = f", +{len(names) - _OPERATORS} more" if len(names) > _OPERATORS else ""
    shared = "".join(f" ({_shared(one, module.path or '', whole)})" for one in module.shared[:_SHARED])
    return ", ".join(names[:_OPERATORS]) + more + shared


def _shared(one: SharedTime, above: str, whole: float) -> str:
    names = [_relative(path, above) or "(model)" for path in one.modules]
    listed = "+".join(names[:_SHARERS]) + (f"+{len(names) - _SHARERS} more" if len(names) > _SHARERS else "")
    return f"fused: {listed} {one.time / whole:.1%}" if whole else f"fused: {listed}"


def _providers(module: ModuleTime) -> str:
    total = sum(module.providers.values())
    named = {name.removesuffix("ExecutionProvider"): time for name, time in module.providers.items()}
    return ", ".join(f"{name} {time / total:.0%}" for name, time in named.items()) if total else ", ".join(named)


def time_text(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.2f} s"
    return f"{microseconds / 1e3:.2f} ms" if microseconds >= 1e3 else f"{microseconds:.0f} µs"
