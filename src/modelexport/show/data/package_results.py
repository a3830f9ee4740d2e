"""Results about packages as JSON and CSV: the documents of the files by component, and what joins them.

    {"schema": 1, "package": "qwen3", "components": {"decoder": {…}}, "modules": […], "cache": […], "absent": […]}

In CSV, every row begins with the component that it is about. Notation and writer are those of all results
(`fields.py`); a document of a file inside is the one that its own verb writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modelexport.inspect.analyze import Analysis
from modelexport.inspect.package.analyze import PackageAnalysis, PackageModule
from modelexport.inspect.package.cache_bytes import CacheTensor, ModuleCache
from modelexport.inspect.package.cost import PackageCost
from modelexport.inspect.package.pairs import PackagePair
from modelexport.inspect.package.validate import PackageValidation
from modelexport.inspect.query.answer import PackageAnswer
from modelexport.record.package import AbsentModule, ComponentLink
from modelexport.record.results.cost import Cost
from modelexport.record.results.package_profile import ChainTime, PackageProfile, PhaseProfile
from modelexport.record.results.package_verification import (
    PackageVerification,
    StepCheck,
    StepDivergence,
    TokenCheck,
)
from modelexport.show.data.fields import Fields, ResultField, Tables, computed, constant, fields

_SCHEMA = constant("schema", 1)


def package_tables(queried_node: Fields) -> Tables:
    """The tables of all results about packages. `queried_node` is a node as `query` shows it."""
    return {
        PackageAnalysis: fields(
            _SCHEMA, "package=folder target model task filter_tag? components modules cache links absent notes"
        ),
        PackageModule: fields("path class=class_name tag nodes parameters"),
        CacheTensor: fields(
            "component past present module dtype",
            computed("shape", _shape),
            computed("bytes", lambda item: item.nbytes),
        ),
        ModuleCache: fields("component module tensors bytes=nbytes"),
        ComponentLink: fields("source output target input"),
        AbsentModule: fields("path class=class_name parameters reason"),
        PackageAnswer: fields(
            _SCHEMA,
            "package=folder query",
            computed("total", lambda answer: sum(len(item.provenance.nodes) for item in answer.components.values())),
            computed("count", lambda answer: len(answer.nodes)),
            ResultField("nodes", lambda answer, _: answer.nodes, fields=rows_by_component(queried_node)),
            "notes",
        ),
        PackageValidation: fields(_SCHEMA, "package=folder ok checks findings components renewed"),
        PackageCost: fields(_SCHEMA, "package=folder axes at components cache cache_by_module cache_bytes notes"),
        PackageVerification: fields(
            _SCHEMA,
            "package=folder reference ok components steps grid tokens divergence missing connections notes seconds:3",
        ),
        StepCheck: fields("step component batch past query padding? ok calls given outputs divergence"),
        StepDivergence: fields("component module class=class_name value reason difference"),
        PackageProfile: fields(
            _SCHEMA, "package=folder batch prompt new_tokens ok prefill decode phases notes seconds:3"
        ),
        ChainTime: fields("tokens seconds:6 tokens_per_second:3"),
        PhaseProfile: fields("phase component past query attention:6 profile"),
        TokenCheck: fields("ok first_differing expected chosen"),
        PackagePair: fields(_SCHEMA, "identical left right components only_left only_right joints"),
    }


_PHASE_COLUMNS = fields("phase component past query attention:6 time_us=profile.time:3 wall_us=profile.wall:3")
_CHECK_COLUMNS = fields(
    "step component batch past query padding ok calls",
    "max_abs=worst.max_abs sqnr=worst.sqnr",
    "module=divergence.module value=divergence.value reason=divergence.reason",
)


def package_columns(columns: Mapping[type, Mapping[str, Fields]]) -> Mapping[type, Mapping[str, Fields]]:
    """The rows of packages, from those of the results of files."""

    by_component: dict[type, dict[str, Fields]] = {
        package: {rows: rows_by_component(row) for rows, row in columns[file].items()}
        for package, file in ((PackageAnalysis, Analysis), (PackageCost, Cost))
    }
    return {**by_component, PackageVerification: {"checks": _CHECK_COLUMNS}, PackageProfile: {"phases": _PHASE_COLUMNS}}


def rows_by_component(row: Fields) -> Fields:
    """The table for pairs of a component and an item: the component first, then what the item says in its own file."""
    return (computed("component", lambda pair: pair[0]), *map(_inside, row))


def _inside(field: ResultField) -> ResultField:
    def read(pair: Any, result: Any) -> object:
        return field.read(pair[1], result.components[pair[0]])

    return ResultField(field.name, read, field.path, field.digits, field.empty, field.fields)


def _shape(tensor: CacheTensor) -> object:
    """An axis without a name is null."""
    return None if tensor.shape is None else [dim if dim != "" else None for dim in tensor.shape]
