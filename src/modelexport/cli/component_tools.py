"""Tools on packages on the command line: `quantize`, `run-tool` and `relink` hand over to one function each here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelexport.errors import UserError

if TYPE_CHECKING:
    from modelexport.api.package import Package
    from modelexport.api.package_tools import PackageTarget
    from modelexport.record.results.files import PackageChange, QuantizeResult, RelinkResult


@dataclass(frozen=True)
class PackageRequest:
    """Where a package is written to, and what of it is changed."""

    output: Path
    components: tuple[str, ...]
    force: bool

    def target(self, number_type: str) -> PackageTarget:
        from modelexport.api.package_tools import PackageTarget

        return PackageTarget(self.output, self.components, number_type, self.force)


def quantize_files(
    package: Package,
    request: PackageRequest,
    *,
    exclude: tuple[str, ...],
    include: tuple[str, ...],
    op_types: tuple[str, ...],
    input: tuple[str, ...],
    **options: Any,
) -> PackageChange[QuantizeResult]:
    from modelexport.api.package_tools import ToolOptions, run_on_package
    from modelexport.api.quantize import quantize

    _refuse_arrays(package, request, "--calibration", options["calibration"])

    def quantize_component(file: Path, path: Path, told: ToolOptions) -> QuantizeResult:
        parts: dict[str, Any] = asdict(told)
        return quantize(file, path, **parts, **options)

    told = ToolOptions(exclude, include, op_types, input)
    return run_on_package(package, request.target(options["weight_type"] or "int8"), told, quantize_component)


def run_tool_on_files(
    package: Package, request: PackageRequest, *, tool: str, input: tuple[str, ...], inputs: Path | None, **options: Any
) -> PackageChange[RelinkResult]:
    from modelexport.api.package_tools import ToolOptions, find_number_type, run_on_package
    from modelexport.api.run_tool import run_tool

    _refuse_arrays(package, request, "--inputs", inputs)
    target = request.target(find_number_type(tool))

    def run_on_component(file: Path, path: Path, told: ToolOptions) -> RelinkResult:
        return run_tool(file, tool, path, input=told.input, inputs=inputs, **options)

    return run_on_package(package, target, ToolOptions(input=input), run_on_component)


def relink_files(
    files: tuple[Path, ...], output: Path | None, only: tuple[str, ...], *, force: bool, **options: Any
) -> PackageChange[RelinkResult]:
    """`files` are the folder before, if it is given, and the one after."""
    from modelexport.api.package_tools import PackageTarget, relink_package

    folders = [path for path in files if path.is_dir()]
    others = [path for path in files if path not in folders]
    if others:
        raise UserError(f"{folders[0]} is a folder, and {others[0]} is not", "Give two packages, or two files.")
    if output is None and only:
        raise UserError(
            "nothing is written, so nothing is copied", "Leave --component out, or say where to: -o FOLDER."
        )
    target = None if output is None else PackageTarget(output, only, force=force)
    return relink_package(files[-1], target, before=files[0] if len(files) > 1 else None, **options)


def _refuse_arrays(package: Package, request: PackageRequest, option: str, given: object) -> None:
    """Components take different inputs, and an archive has those of one."""
    if given and len(request.components or package.components) > 1:
        raise UserError(
            f"{option} is for one component, and {package.folder} has {len(package)}",
            "Say which one: --component NAME; the others are copied, and can be changed afterwards.",
        )
