"""The verbs and where each of them is."""

from __future__ import annotations

from importlib import import_module

import click

# The help texts are here so that listing the verbs imports none of them.
_SECTIONS = {
    "Make tagged files": {
        "export": "Export a model to ONNX and record which module produced each node.",
        "attach": "Tag a file that another tool exported from a model.",
        "relink": "Carry the record to a file that an optimizer or quantizer made of a tagged one.",
        "run-tool": "Run an optimizer, converter or quantizer on a tagged file, and relink what comes out.",
        "quantize": "Quantize a tagged file with ONNX Runtime, by module, and relink what comes out.",
    },
    "Ask": {
        "analyze": "Show what a file consists of, module by module.",
        "query": "List the nodes that a query means: by module, operator, role, confidence and more.",
        "view": "Write one HTML page that shows a file: modules, sizes, dataflow, and how well everything is known.",
        "cost": "Count the FLOPs, parameters and bytes of a file, module by module.",
        "profile": "Run a file in ONNX Runtime and show in which module its time goes.",
        "compare": "Count how two files differ, module by module.",
        "diff": "Show what changed between two files, or two modules: nodes, attributes, shapes, weights, cost.",
    },
    "Check": {
        "validate": "Check a file, its record and its tags.",
        "verify": "Compare a file with its model, or with another file of it, module by module; prove attributions.",
        "strategies": "Judge a file by every strategy, side by side.",
    },
    "Use modules as handles": {
        "extract": "Write a module, several, or what a query means as a file of its own.",
        "select": "Write the nodes that a query means for another tool: quantizers, placement, splitting, precision.",
        "fold": "Make modules that repeat into ONNX functions, nested as the modules are.",
        "flatten": "Put functions in the place of their calls: the way back from `fold`.",
        "convert": "Write a file as other viewers show it: Model Explorer, GraphML, Graphviz, Mermaid, CSV, Netron.",
        "strip": "Write a file without what this tool has put into it.",
    },
}
_VERBS = tuple(verb for section in _SECTIONS.values() for verb in section)


class LazyVerbs(click.Group):
    """A group whose commands are imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click calls it so
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click calls it so
        if cmd_name not in _VERBS:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(import_module(f"modelexport.cli.{name}"), name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _VERBS and not args[0].startswith("-"):
            from modelexport.errors import UnknownName

            raise UnknownName("command", args[0], _VERBS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click calls it so
        for title, verbs in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(verbs.items()))


def show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        click.echo(f"modelexport {_version()}")
        ctx.exit()


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("modelexport")
    except metadata.PackageNotFoundError:
        return "(not installed)"
