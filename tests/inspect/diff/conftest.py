from collections.abc import Iterator

import pytest
from tests.support.stacks import save

__all__ = ["save"]


@pytest.fixture(autouse=True)
def _without_modules() -> Iterator[None]:
    """Files by hand tell of modules by their names; what is compared here are nodes, or modules of a record."""
    # A patch of its own, because tests undo theirs.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("modelexport.api.diff._read_modules", lambda _: None)
        yield
