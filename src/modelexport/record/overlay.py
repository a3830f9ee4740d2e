"""Documents that `profile` and `verify` wrote as JSON, read back to be laid over a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from modelexport.errors import FileUnreadable, RecordMismatch
from modelexport.record.hierarchy import Hierarchy


def read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FileUnreadable(f"cannot read {path}: {reason}", "Check the path and its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise FileUnreadable(f"{path} is not JSON: {error}", "Write it again with `--format json`.") from error


def ensure_about(hierarchy: Hierarchy, classes: Mapping[str, str], path: Path) -> None:
    """Raise RecordMismatch for a document that is not about this model.

    Names of nodes are alike in models that have nothing in common; modules with their classes are not.

    classes  of the modules that the document names, by path
    """
    for name, class_name in classes.items():
        module = hierarchy.modules.get(hierarchy.canonical.get(name, name))
        if module is None or module.class_name != class_name:
            there = f"is of the class {module.class_name}" if module else "is not there"
            raise RecordMismatch(
                f"{path} is of another model: it has a module {name or '(model)'} of the class {class_name}, "
                f"which {there} in this one",
                "Give what `profile` or `verify` wrote about this file, or about one that was made from it.",
            )
    if not classes:
        raise RecordMismatch(f"{path} names no module", "Give what `profile` or `verify` wrote about this file.")
