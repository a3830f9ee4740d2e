"""Models of the corpus as callables: `measure.fleet.corpus_models:bert` builds the row `bert`, with its inputs.

This is how rows that are no folders get into a file of models: each process of a fleet builds its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from measure.corpus.rows import Row

MODULE = __name__


def callable_name(name: str) -> str:
    return name.replace("-", "_")


def pick_corpus(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Rows of architectures, whose inputs have names; networks of the corpus are called with what they like."""
    return [row for row in rows if not row.hand_made and (not names or row.name in names)]


def __getattr__(name: str) -> Callable[[], tuple[nn.Module, Mapping[str, object]]]:
    from measure.corpus.models import build, inputs_of, rows_by_name

    row = next((row for row in rows_by_name().values() if callable_name(row.name) == name), None)
    if row is None:
        raise AttributeError(name)

    def make() -> tuple[nn.Module, Mapping[str, object]]:
        model = build(row)
        inputs = inputs_of(row, model)
        assert isinstance(inputs, Mapping), row.name
        return model, inputs

    return make
