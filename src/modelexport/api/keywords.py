"""Keywords of public functions as types, for overloads that tell a file from a package.

    @overload
    def attach(file: Package, …, **options: Unpack[AttachKeywords]) -> Package: ...

An overload would have to repeat every keyword, and without them a type checker lets a misspelt one pass. The functions
themselves have the keywords in their signatures; a test holds both against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from modelexport.api.environment import Progress

if TYPE_CHECKING:
    import torch

    from modelexport.api.package import Package


# All are `total=False`: every keyword has a default, which is in the signature and nowhere else.


class _SourceKeywords(TypedDict, total=False):
    """How a model is loaded, and what it is run on."""

    inputs: object
    task: str | None
    dtype: str | None
    device: str
    seed: int
    trust_remote_code: bool
    allow_pickle: bool
    text: str | None
    image: str | Path | None
    input: Sequence[str]
    input_specs: str | Path | None
    progress: Progress | None


class _TaggingKeywords(TypedDict, total=False):
    """What is written on nodes, and how modules are called."""

    strategy: str
    torch_nn: str
    torch_nn_exception: Sequence[str]
    tag_policy: str
    keep: Sequence[str]
    drop: Sequence[str]
    embed: str
    names: str
    strip_exporter_metadata: bool
    force: bool


class AttachKeywords(_SourceKeywords, _TaggingKeywords, total=False):
    """Those of `attach`."""

    memory: int | str | None


class ExportKeywords(_SourceKeywords, _TaggingKeywords, total=False):
    """Those of `export`, but for `target`, which decides what it returns."""

    exporter: str | None
    opset: int | None
    no_weights: bool
    no_optimize: bool
    static: bool
    dynamic: bool
    external_data: bool | None
    shard_size: int | str | None
    no_check: bool
    atol: float | None
    rtol: float | None
    jit_graph: str | Path | None
    fx_graph: str | None
    verbose: bool


class _RunKeywords(TypedDict, total=False):
    """Tools that run on a file or on the components of a package."""

    input: Sequence[str]
    samples: int
    seed: int
    embed: str
    check: bool
    components: Sequence[str]
    force: bool
    progress: Progress | None


class RunToolKeywords(_RunKeywords, total=False):
    """Those of `run_tool`."""

    inputs: str | Path | None


class QuantizeKeywords(_RunKeywords, total=False):
    """Those of `quantize`."""

    exclude: str | Sequence[str]
    include: str | Sequence[str]
    static: bool
    calibration: str | Path | Sequence[str | Path]
    quant_format: str | None
    method: str | None
    weight_type: str | None
    activation_type: str | None
    op_types: Sequence[str]
    per_channel: bool
    reduce_range: bool
    block_size: int | None
    report: bool


class RelinkKeywords(TypedDict, total=False):
    """Those of `relink`."""

    before: str | Path | Package | None
    tool: str
    embed: str
    names: str
    strip_exporter_metadata: bool
    components: Sequence[str]
    force: bool
    progress: Progress | None


class VerifyKeywords(_SourceKeywords, total=False):
    """Those of `verify`, but for `against`."""

    new_tokens: int | None
    grid: bool
    samples: int
    atol: float | None
    rtol: float | None
    min_sqnr: float | None
    as_deployed: bool
    proof: bool
    branches: bool
    memory: int | str | None


class ProfileKeywords(TypedDict, total=False):
    """Those of `profile`."""

    before: str | Path | None
    prompt: int | None
    new_tokens: int | None
    past: Sequence[int]
    batch: int
    runs: int
    warmup: int
    optimization: str
    providers: Sequence[str]
    threads: int
    inputs: str | Path | None
    input: Sequence[str]
    model: torch.nn.Module | str | Path | None
    seed: int
    progress: Progress | None
