"""Reading a configuration by field name, wherever in its nested configurations the field stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fields:
    """A configuration (or None for a module that has none) read by field name."""

    config: object | None

    def find(self, *names: str, within: Sequence[str] = ()) -> Any:
        """The first of `names` that is set anywhere.

        Configurations whose name contains one of `within` ("vision", "decoder") are asked first: their part
        of the model was built from them. Then come the outermost one and all the others.
        """
        levels = list(self._levels())
        ordered = sorted(levels, key=lambda level: not any(word in level[0] for word in within))
        found = (getattr(config, name, None) for name in names for _, config in ordered)
        return next((value for value in found if value is not None), None)

    def number(self, *names: str, within: Sequence[str] = ()) -> int | None:
        value = self.find(*names, within=within)
        return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def own(self, name: str) -> Any:
        """A field of the outermost configuration only."""
        return getattr(self.config, name, None)

    def special_tokens(self) -> frozenset[int]:
        """Every id that a field names as a special token, which sample text should not contain."""
        tokens: set[int] = set()
        for _, config in self._levels():
            for name, value in _attributes(config):
                if name.endswith(("_token_id", "_token_index")):
                    tokens.update(item for item in _listed(value) if isinstance(item, int))
        return frozenset(tokens)

    def _levels(self) -> Iterator[tuple[str, object]]:
        """Names and configurations, outermost first; whatever can be written as a dictionary is one."""
        level = [("", self.config)] if self.config is not None else []
        while level:
            yield from level
            level = [
                (name, value)
                for _, owner in level
                for name, value in _attributes(owner)
                if hasattr(value, "to_dict") and not isinstance(value, type)
            ]


def _attributes(config: object) -> list[tuple[str, Any]]:
    return list(getattr(config, "__dict__", {}).items())


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else (value,)
