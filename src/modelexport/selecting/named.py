"""Names as they are, one on each line."""

from __future__ import annotations

from modelexport.selecting.dialect import Dialect, Selection, Settings, Sight, Text


def write(selection: Selection, settings: Settings) -> Text:  # noqa: ARG001 - there are none for it
    return Text("".join(f"{name}\n" for name in dict.fromkeys(node.name for node in selection.nodes)))


def refuses(name: str) -> str:
    return "" if name.isprintable() else "there are control characters in it, and a line holds one name"


NAMES = Dialect("names", "node names, one on each line", write, Sight.ALL, refuses=refuses)
