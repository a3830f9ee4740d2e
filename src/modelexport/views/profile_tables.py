"""A profile for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from modelexport.record.profile import NOISY, ModuleTime, Profile, SharedTime
from modelexport.record.provenance import is_within
from modelexport.views.amounts import counted, share_text
from modelexport.views.console import plain, table

# Modules that take less than this share of the time are left out, unless all are asked for.
_SMALL = 0.005
_OPERATORS, _SHARED, _SHARERS, _FALLEN = 2, 3, 4, 4
_NOISY, _ALIKE = "!", "≈"


def profile_tables(
    profile: Profile, *, depth: int | None = None, everything: bool = False, verbose: bool = False
) -> Iterator[RenderableType]:
    yield _head(profile)
    yield Text()
    shown = list(_shown(profile, depth, everything))
    yield _modules(profile, shown)
    yield from (plain(line, "dim") for line in _legend([module for _, module in shown]))
    yield plain(f"{share_text(profile.attributed)} of the time of all kernels belongs to a module", "dim")
    yield plain(_sum(profile), "dim" if profile.check.holds else "red")
    yield from (plain(f"note: {note}", "yellow") for note in [*_fallen(profile), *_disturbed(profile), *profile.notes])
    if verbose and profile.seconds:
        yield plain(", ".join(f"{step} {seconds:.1f} s" for step, seconds in profile.seconds.items()), "dim")


def _head(profile: Profile) -> Text:
    apart = "spread unknown" if profile.spread is None else f"± {profile.spread / 2:.0%}"
    parts = (
        profile.file,
        f"{counted(profile.runs, 'run')} after {profile.warmup} to warm up",
        f"optimization {profile.optimization}",
        ", ".join(map(_short, profile.providers)),
        f"{time_text(profile.wall)} a run ({apart}), {time_text(profile.busy)} in kernels",
    )
    return plain(" · ".join(parts), "bold")


def _modules(profile: Profile, shown: Iterable[tuple[list[str], ModuleTime]]) -> Table:
    several = len({*profile.providers, *profile.requested[:1]}) > 1
    numbers = ("time", "self", "median", "±", "calls", "nodes")
    found = table("", "module", *numbers, "op types", *(["providers"] if several else []), right=numbers)
    for above, module in shown:
        row: list[RenderableType] = [
            plain("  " * len(above) + _name(module, above)),
            f"{module.time / profile.time:.1%}" if profile.time else "",
            f"{module.own / profile.time:.1%}" if profile.time and module.own else "",
            time_text(module.median),
            _apart(module),
            f"{round(module.calls, 1):,g}" if module.calls else "",
            f"{module.nodes:,}",
            Text("\n").join(plain(line, "dim") for line in _details(module, profile.time)),
        ]
        found.add_row(*row, *([plain(_providers(module))] if several else []))
    return found


def _apart(module: ModuleTime) -> str:
    """How far the runs are apart, and whether that is too far to say much."""
    if module.spread is None:
        return "?"
    return f"{_NOISY if module.noisy else ''}{_ALIKE if module.alike else ''}{module.spread / 2:.0%}"


def _legend(modules: Sequence[ModuleTime]) -> Iterator[str]:
    known = [module for module in modules if module.spread is not None]
    if any(module.noisy for module in known):
        yield f"{_NOISY} noisy: the runs are more than ± {NOISY / 2:.0%} apart"
    if any(module.alike for module in known):
        yield f"{_ALIKE} differs from the next module inside of the same one by less than their runs do: no ranking"


def _sum(profile: Profile) -> str:
    """What the trace says by itself, and what the table adds up to."""
    check = profile.check
    trace, charged = (time_text(total / profile.runs) for total in (check.trace, check.charged))
    if check.holds:
        return f"ONNX Runtime's trace has {trace} of kernels a run on average, and the parts add up to it"
    return f"NOT TO BE RELIED ON: ONNX Runtime's trace has {trace} of kernels a run on average, the parts {charged}"


def _fallen(profile: Profile) -> Iterator[str]:
    """Modules that did not run on the provider that was asked for, by what they do themselves."""
    own: dict[str, float] = {}
    for node in profile.nodes:
        if profile.requested and node.provider != profile.requested[0]:
            path = "(no module)" if node.module is None else node.module or "(model)"
            own[path] = own.get(path, 0.0) + node.time
    if not own:
        return
    paths = sorted(own, key=lambda path: -own[path])
    more = f", +{len(paths) - _FALLEN} more" if len(paths) > _FALLEN else ""
    part = share_text(sum(own.values()) / profile.time) if profile.time else "all"
    asked, others = _short(profile.requested[0]), sorted({_short(node.provider) for node in profile.nodes})
    instead = ", ".join(name for name in others if name != asked)
    yield f"{part} of the time fell back from {asked} to {instead}, in {', '.join(paths[:_FALLEN])}{more}"


def _disturbed(profile: Profile) -> Iterator[str]:
    if profile.disturbed:
        usual = f"kernels that took as long as they usually do would take {time_text(profile.time)} a run"
        yield f"{usual}, and they take {time_text(profile.busy)}: something else keeps this machine busy"


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider")


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


def _details(module: ModuleTime, whole: float) -> Iterator[str]:
    """Its operators, and what the modules inside of it have in common."""
    names = list(module.operators)
    more = f", +{len(names) - _OPERATORS} more" if len(names) > _OPERATORS else ""
    yield ", ".join(names[:_OPERATORS]) + more
    for one in module.shared[:_SHARED]:
        yield f"({_shared(one, module.path or '', whole)})"
    if len(module.shared) > _SHARED:
        yield f"(+{len(module.shared) - _SHARED} more of several modules)"


def _shared(one: SharedTime, above: str, whole: float) -> str:
    names = [_relative(path, above) or "(model)" for path in one.modules]
    shown = names[:_SHARERS] + ([f"{len(names) - _SHARERS} more"] if len(names) > _SHARERS else [])
    listed = f"one of: {' or '.join(shown)}" if one.unclear else f"fused: {'+'.join(shown)}"
    return f"{listed} {one.time / whole:.1%}" if whole else listed


def _providers(module: ModuleTime) -> str:
    total = sum(module.providers.values())
    named = {_short(name): time for name, time in module.providers.items()}
    return ", ".join(f"{name} {time / total:.0%}" for name, time in named.items()) if total else ", ".join(named)


def time_text(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.2f} s"
    return f"{microseconds / 1e3:.2f} ms" if microseconds >= 1e3 else f"{microseconds:.0f} µs"
