"""Start of the command line: an interrupt is answered from here on, before click and everything else is imported."""

from __future__ import annotations

import sys

_INTERRUPTED = 130  # 128 and the number of the signal, as shells have it


def main() -> None:
    try:
        from modelexport.cli.main import main as run_command_line

        run_command_line()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(_INTERRUPTED)
