"""Which transformers class builds a model: by task, by `config.architectures`, or AutoModel.

Tasks are read from transformers' own pipeline registry. The tasks it no longer lists still have an Auto class
of the same name (`question-answering`, `AutoModelForQuestionAnswering`); those with neither are listed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from modelexport.capture.loading.loaded import LoadOptions
from modelexport.capture.loading.third_party import library
from modelexport.errors import ModelUnloadable, UnknownName

# Tasks without a pipeline in transformers 5 whose Auto class has another name.
_RENAMED_TASKS = {
    "text2text-generation": "AutoModelForSeq2SeqLM",
    "summarization": "AutoModelForSeq2SeqLM",
    "translation": "AutoModelForSeq2SeqLM",
    "masked-lm": "AutoModelForMaskedLM",
    "audio-xvector": "AutoModelForAudioXVector",
}
_AUTO_PREFIX = "AutoModelFor"


def model_class(config: Any, raw: Mapping[str, object], options: LoadOptions) -> Any:
    """The class whose `from_pretrained` loads this configuration."""
    if options.task is not None:
        return _class_for_task(config, raw, options.task)
    named = _first(raw.get("architectures"))
    if options.trust_remote_code and (own := _class_from_auto_map(raw, named)) is not None:
        return own
    return library("transformers").AutoModel if named is None else _named_class(named)


def refuse_remote_code(raw: Mapping[str, object], source: str, options: LoadOptions) -> None:
    """Stop at a model that only its own Python code can build, unless the user trusts that code."""
    if options.trust_remote_code or not raw.get("auto_map") or _is_native(raw):
        return
    raise ModelUnloadable(
        f"{source!r} needs Python code of its own (auto_map in config.json), which is not run by default",
        "Read that code, then pass --trust-remote-code.",
    )


def _is_native(raw: Mapping[str, object]) -> bool:
    """Many checkpoints still carry code for a model that transformers has had since."""
    transformers = library("transformers")
    named = _first(raw.get("architectures"))
    return raw.get("model_type") in transformers.CONFIG_MAPPING and (named is None or hasattr(transformers, named))


def _named_class(name: str) -> Any:
    transformers = library("transformers")
    found = getattr(transformers, name, None)
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
        return found
    raise ModelUnloadable(
        f"transformers {transformers.__version__} has no model class {name!r} (architectures in config.json)",
        "Upgrade transformers, or choose a class it has with --task, for example --task feature-extraction.",
    )


def _first(architectures: object) -> str | None:
    listed = architectures if isinstance(architectures, list) else []
    return str(listed[0]) if listed else None


def _class_from_auto_map(raw: Mapping[str, object], named: str | None) -> Any | None:
    auto_map = raw.get("auto_map")
    if not isinstance(auto_map, dict):
        return None
    models = {auto: str(code) for auto, code in auto_map.items() if str(auto).startswith("AutoModel")}
    own = [auto for auto, code in models.items() if code.split(".")[-1] == named] or list(models)
    return getattr(library("transformers"), own[0], None) if own else None


def _class_for_task(config: Any, raw: Mapping[str, object], task: str) -> Any:
    candidates = task_classes(task)
    auto_map = raw.get("auto_map")
    for candidate in candidates:
        if type(config) in candidate._model_mapping:
            return candidate
        if isinstance(auto_map, dict) and candidate.__name__ in auto_map:
            return candidate
    names = " or ".join(candidate.__name__ for candidate in candidates)
    raise ModelUnloadable(
        f"a model of type {config.model_type!r} cannot do task {task!r}: {names} has no class for it",
        "Leave --task out to use the architecture named in config.json.",
    )


def task_classes(task: str) -> Sequence[Any]:
    """The Auto classes for a task, in the order transformers would try them."""
    transformers, pipelines = library("transformers"), library("transformers.pipelines")
    known, aliases = pipelines.SUPPORTED_TASKS, pipelines.TASK_ALIASES
    registered = known.get(aliases.get(task, task))
    if registered is not None:
        classes: Sequence[Any] = registered["pt"]
        return classes
    by_name = {_task_name(name): name for name in dir(transformers) if name.startswith(_AUTO_PREFIX)}
    name = _RENAMED_TASKS.get(task) or by_name.get(task)
    if name is None:
        raise UnknownName("task", task, [*known, *aliases, *_RENAMED_TASKS, *by_name])
    return (getattr(transformers, name),)


def _task_name(auto_class: str) -> str:
    """`AutoModelForQuestionAnswering` is the class of task `question-answering`."""
    words = auto_class.removeprefix(_AUTO_PREFIX)
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in words).lstrip("-")
