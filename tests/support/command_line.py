"""The command line, called in this process."""

from __future__ import annotations

import pytest

from modelexport.cli.main import main


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code
