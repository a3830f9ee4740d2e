"""The command line. One file for each verb: parse, one call of the api, one view.

A verb's file is imported when the verb is used, so that `--help` and the verbs that only read stay quick.
"""

from __future__ import annotations

import sys

import click

from modelexport.cli.failures import run_guarded
from modelexport.cli.verbs import LazyVerbs, show_version


@click.group(
    cls=LazyVerbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=False,
    invoke_without_command=True,
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Show the version and exit.",
)
@click.pass_context
def modelexport(context: click.Context) -> None:
    """Export models to ONNX, and say which PyTorch or Hugging Face module produced each node."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 fine, 1 a check found something, 2 the user can fix it, 3 the tool failed."""
    given = sys.argv[1:] if arguments is None else arguments
    sys.exit(run_guarded(modelexport, given))
