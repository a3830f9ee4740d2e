"""Numbers for people: as short as they can be without two different ones looking the same."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def written(array: np.ndarray) -> Iterator[str]:
    """Each number of an array, with as many digits as its type takes to be told from its neighbours."""
    return (str(number).removesuffix(".0") for number in array.reshape(-1))
