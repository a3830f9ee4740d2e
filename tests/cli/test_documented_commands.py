"""Command lines in README and docs: each is parsed by the real command line, without running it.

A line of a synopsis has brackets and alternatives, which no shell takes: of it, every option must exist.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from modelexport.cli.main import LazyVerbs

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(?:sh)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ )?modelexport (.*)$", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
IN_TABLE = re.compile(r"^\| (`-.*?) \|", re.MULTILINE)
VERBS = LazyVerbs().list_commands(click.Context(LazyVerbs()))
SYNOPSIS = re.compile(r"\[(--|-o|options)|\w\|\w|…|\.\.\.|[A-Z]{4,} ")


def command_lines(text: str) -> Iterator[str]:
    for block in BLOCK.findall(text):
        yield from (line.strip() for line in COMMAND.findall(block.replace("\\\n", " ")))


def options_of(verb: str) -> set[str]:
    command = LazyVerbs().get_command(click.Context(LazyVerbs()), verb)
    assert command is not None, f"there is no command {verb!r}"
    options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return options | {"--help", "-h"}


def complaint(line: str) -> str:
    """Why the command line refuses a line; empty if it does not."""
    verb, *arguments = shlex.split(line, comments=True)
    if verb.startswith("-"):
        return ""
    known = options_of(verb)
    if SYNOPSIS.search(line):
        unknown = set(OPTION.findall(line)) - known
        return f"no options of {verb}: {sorted(unknown)}" if unknown else ""
    command = LazyVerbs().get_command(click.Context(LazyVerbs()), verb)
    assert command is not None
    try:
        # What a shell does with the output is none of the command's business.
        command.make_context(verb, [*_until_redirection(arguments)])
    except click.ClickException as error:
        return error.format_message()
    except click.exceptions.Exit:  # it shows something and is done, as --list does
        return ""
    return ""


def _until_redirection(arguments: list[str]) -> Iterator[str]:
    for argument in arguments:
        if argument in (">", ">>", "|", "&&", ";", "2>&1"):
            return
        yield argument


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_is_one_that_the_program_takes(page: Path) -> None:
    refused = {line: complaint(line) for line in command_lines(page.read_text("utf-8"))}
    assert {line: why for line, why in refused.items() if why} == {}


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem in VERBS], ids=lambda page: page.name)
def test_options_in_the_tables_of_a_command_exist(page: Path) -> None:
    cells = IN_TABLE.findall(page.read_text("utf-8"))
    listed = {option for cell in cells for code in re.findall("`(.*?)`", cell) for option in OPTION.findall(code)}
    assert listed <= options_of(page.stem)


def test_a_wrong_option_is_seen() -> None:
    assert "--dept" in complaint("cost bert.onnx --dept 2")
    assert "--dept" in complaint("cost FILE [--dept N]")
    assert "'yaml'" in complaint("cost bert.onnx --format yaml")
    assert complaint("cost bert.onnx --depth 2 > cost.txt  # two levels") == ""
