"""Cases: a mutated file and a command on it, by number. The same number is the same case, today and tomorrow.

    case 4711  →  file 588, its 7th command  →  seed `tagged`, mutation `record`, `diff {partner} {file} --format html`

The numbers follow from the seeds alone, so that a case that failed can be looked at alone: `--case 4711`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from google.protobuf.message import DecodeError

from measure.fuzzing.mutate_files import MUTATIONS, Files, NotApplicable, mutate_files
from measure.fuzzing.seeds import ARRAYS, OVERLAY, PARTNER, Seed, read_files

# One mutated file is read by so many commands: most of its cost is in the commands.
PER_FILE = 8
# Commands by verb. Words in braces are filled in by `fill_command`.
COMMANDS = {
    "analyze": (
        "analyze {file}",
        "analyze {file} --format detailed",
        "analyze {file} --format json",
        "analyze {file} --format csv -o {made}/nodes.csv",
    ),
    "query": (
        "query {file} op=*",
        "query {file} 'module=** & confidence<=strong | !role=**' --format json",
        "query {file} 'layer>=0 | tensor=*' --format names",
    ),
    "validate": (
        "validate {file}",
        "validate {file} --check-consistency --format json",
        "validate {file} --repair -o {made}/repaired.onnx",
    ),
    "cost": ("cost {file}", "cost {file} --by node --format csv", "cost {file} --all --format json"),
    "compare": ("compare {file} {partner}", "compare {partner} {file} --format json"),
    "diff": (
        "diff {file} {partner}",
        "diff {partner} {file} --format json",
        "diff {partner} {file} --cost --format html -o {made}/diff.html",
        "diff {file} {file} --left-module {module}",
    ),
    "select": (
        "select {file} op=* --for names",
        "select {file} module={module}.** --for ort-exclude -o {made}/exclude.json --named {made}/named.onnx",
        "select {file} op=* --for layer-ann -o {made}/annotated.onnx",
        "select {file} op=* --for tensorrt",
        "select {file} module={module}.** --for olive-split",
    ),
    "convert": tuple(
        f"convert {{file}} --to {form} -o {{made}}/converted"
        for form in ("graphml", "model-explorer", "dot", "mermaid", "csv", "netron")
    ),
    "relink": (
        "relink {file} -o {made}/relinked.onnx",
        "relink {partner} {file} -o {made}/relinked.onnx",
        "relink {file} {partner} --format json -o {made}/relinked.onnx",
    ),
    "extract": (
        "extract {file} {module} -o {made}/part.onnx",
        "extract {file} op=* -o {made}/part.onnx --format json",
    ),
    "fold": ("fold {file} -o {made}/folded.onnx",),
    "flatten": ("flatten {file} -o {made}/flat.onnx",),
    "strip": ("strip {file} -o {made}/stripped.onnx",),
    "view": ("view {file} -o {made}/page.html", "view {file} --against {partner} -o {made}/page.html"),
    "attach": ("attach {file} -o {made}/tagged.onnx", "attach {file} --names hierarchical -o {made}/tagged.onnx"),
}
# Of seeds whose model stays sound, only these read what was mutated.
_SPECIAL = {
    "overlay": {
        "view": ("view {file} --overlay {overlay} -o {made}/page.html",),
        "convert": ("convert {file} --to model-explorer --overlay {overlay} -o {made}/explorer.json",),
    },
    "arrays": {"profile": ("profile {file} --inputs {arrays} --runs 1 --warmup 0",)},
}
_TRIES = 20


@dataclass(frozen=True)
class Case:
    """
    command  with words in braces, for `fill_command`
    """

    number: int
    seed: Seed
    mutation: str
    command: str

    @property
    def verb(self) -> str:
        return self.command.split()[0]


@dataclass(frozen=True)
class MutatedFile:
    """The files of one seed, tampered with, and the cases that read them."""

    files: Files
    cases: tuple[Case, ...]


def draw_file(number: int, seeds: Sequence[Seed], folder: Path) -> MutatedFile:
    """
    folder  where the seeds are
    """
    random = Random(f"file {number}")
    for _ in range(_TRIES):
        seed, other = _draw_seed(seeds, random), _draw_seed(seeds, random)
        (mutation,) = random.choices(list(MUTATIONS), list(MUTATIONS.values()))
        own = folder / seed.name
        mutable = [path.relative_to(own) for path in seed.files(own)]
        try:
            files = mutate_files(
                dict(read_files(own)), mutable, mutation, dict(read_files(folder / other.name)), random
            )
        except (NotApplicable, DecodeError):
            continue
        commands = _draw_commands(seed, random)
        first = number * PER_FILE
        return MutatedFile(
            files, tuple(Case(first + index, seed, mutation, command) for index, command in enumerate(commands))
        )
    raise RuntimeError(f"no mutation fits a seed of file {number}")


def _draw_seed(seeds: Sequence[Seed], random: Random) -> Seed:
    return random.choices(seeds, [1 if seed.name in _SPECIAL else 4 for seed in seeds])[0]


def _draw_commands(seed: Seed, random: Random) -> list[str]:
    known = _SPECIAL.get(seed.name, COMMANDS)
    verbs = random.sample(list(known), min(len(known), PER_FILE))
    return [random.choice(known[verbs[index % len(verbs)]]) for index in range(PER_FILE)]


def fill_command(case: Case, given: Path, made: Path) -> list[str]:
    """The arguments of the command line. `given` holds the files of the seed, `made` is where the command writes."""
    words = {
        "file": str(given / case.seed.subject),
        "partner": str(given / PARTNER),
        "overlay": str(given / OVERLAY),
        "arrays": str(given / ARRAYS),
        "module": case.seed.module,
        "made": str(made),
    }
    return [word.format_map(words) for word in shlex.split(case.command)]
