"""One file of others, and every verb on it: what a worker of the section `foreign` does.

Verbs run by the command line, in this process, one after the other. What a verb writes is read by later ones:

    attach    →  tagged.onnx
    run-tool  →  tool.onnx   →  strip  →  stripped.onnx  →  relink, diff, compare, verify

They are given a copy in a folder of its own, so that whatever a verb leaves beside its input is seen.
"""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from measure.anyfile.foreign_files import cached_path, find_cache, read_manifest
from measure.job import Job, serve
from measure.results import TaskFolder
from modelexport.api.opening import open_file
from modelexport.cli.main import modelexport, run_guarded
from modelexport.errors import ModelExportError
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.record.hierarchy import ROOT, Module, lineage_of
from modelexport.record.provenance import Confidence

READ = "analyze"
PAGE = "view"
PROFILE = "profile"
# In this order, by the name of the task. A word in braces stands for the arguments that `Subject.words` has for it.
VERBS = {
    READ: "analyze {file} --format json -o {made}/analysis.json",
    "query": "query {file} {query} --format json -o {made}/answer.json",
    "validate": "validate {file}",
    "validate:record": "validate {file} --require-record",
    "cost": "cost {file} --format json -o {made}/cost.json",
    PROFILE: "profile {file} {inputs} --runs 1 --warmup 0 --format json -o {made}/profile.json",
    PAGE: "view {file} -o {made}/page.html",
    "attach": "attach {file} -o {made}/tagged.onnx",
    "extract": "extract {file} {part} -o {made}/part.onnx",
    "select": "select {file} {query} --for ort-exclude -o {made}/exclude.json --named {made}/named.onnx",
    "quantize": "quantize {file} {exclude} {inputs} -o {made}/int8.onnx",
    "convert:graphml": "convert {file} --to graphml -o {made}/file.graphml",
    "convert:model-explorer": "convert {file} --to model-explorer -o {made}/explorer.json",
    "convert:dot": "convert {file} --to dot -o {made}/file.dot",
    "convert:mermaid": "convert {file} --to mermaid -o {made}/file.mmd",
    "convert:csv": "convert {file} --to csv -o {made}/file.csv",
    "convert:netron": "convert {file} --to netron -o {made}/netron.onnx",
    "fold": "fold {file} -o {made}/folded.onnx",
    "flatten": "flatten {folded} -o {made}/flat.onnx",
    "run-tool": "run-tool {file} {inputs} --tool ort:extended -o {made}/tool.onnx",
    "strip": "strip {tagged} -o {made}/stripped.onnx",
    "relink": "relink {file} {stripped} -o {made}/relinked.onnx",
    "diff:itself": "diff {file} {file}",
    "diff:made": "diff {file} {stripped} --format html -o {made}/diff.html",
    "compare": "compare {file} {stripped}",
    "verify": "verify {stripped} --against {file} {inputs} --format json -o {made}/verified.json",
}
# How a verb may end, where 0 and 1 are not both right: no file of others has a record of ours.
_EXPECTED = {"validate:record": (1,)}
# What is read instead where an earlier verb wrote nothing.
_MADE = {
    "folded": ("folded.onnx",),
    "tagged": ("tool.onnx", "tagged.onnx"),
    "stripped": ("stripped.onnx",),
}
# A part that is worth cutting out is more than one node and not nearly everything.
_LARGEST_PART = 0.6
_LONGEST = 240


@dataclass(frozen=True)
class Findings:
    """What a file tells of its modules.

    source   where modules are read from, as verbs say it; empty if nothing in the file tells of any
    modules  without the root
    layers   numbers of layers that nodes have
    classes of modules that do more than hold others: `known` by the file, `described` by what they do, `unknown`
    at_root  nodes that are the root's own by inference: no module inside of it is known to have them
    """

    source: str
    nodes: int
    modules: int
    layers: int
    known: int
    described: int
    unknown: int
    strong: int
    inferred: int
    fallback: int
    at_root: int = 0


@dataclass(frozen=True)
class VerbResult:
    """How one verb ended on one file.

    code      exit code; None if it brought its process down or had to be cut off
    reason    what it said, where it did not do what it was asked
    findings  of the verb that reads the file
    """

    file: str
    verb: str
    code: int | None
    reason: str = ""
    seconds: float = 0.0
    findings: Findings | None = None

    @property
    def is_done(self) -> bool:
        return self.code in _EXPECTED.get(self.verb, (0, 1))

    @property
    def is_defect(self) -> bool:
        """Neither done nor refused with a reason."""
        return not self.is_done and not (self.code == 2 and self.reason)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> VerbResult:
        findings = content["findings"]
        return cls(**{**content, "findings": None if findings is None else Findings(**findings)})


@dataclass(frozen=True)
class Subject:
    """One file, the folder where verbs write, the shapes to run it with, and what verbs are asked about."""

    path: Path
    made: Path
    inputs: tuple[str, ...] = ()

    @cached_property
    def file(self) -> TaggedFile | None:
        """None if it cannot be opened; verbs then say why."""
        try:
            return open_file(self.path)
        except ModelExportError:
            return None

    @cached_property
    def part(self) -> str:
        """A module from the middle of the file, or nothing where there is none to cut out."""
        if self.file is None:
            return ""
        inside: Counter[str] = Counter()
        for entry in self.file.provenance.nodes.values():
            ancestor = entry.attribution.ancestor
            inside.update(lineage_of(ancestor.path) if ancestor is not None else ())
        most = _LARGEST_PART * len(self.file.provenance.nodes)
        parts = [path for path in self.file.provenance.hierarchy.modules if path and 1 < inside[path] < most]
        return parts[len(parts) // 2] if parts else ""

    def words(self) -> dict[str, tuple[str, ...]]:
        """`{query}` → `module="encoder.layer.3.**"`; of a file without modules `op=*`."""
        query = f'module="{self.part}.**"' if self.part else "op=*"
        return {
            "file": (str(self.path),),
            "part": (self.part or "(model)",),
            "query": (query,),
            "exclude": ("--exclude", query) if self.part else (),
            "inputs": tuple(word for shape in self.inputs for word in ("--input", shape)),
            **{word: (str(self._first_made(names)),) for word, names in _MADE.items()},
        }

    def _first_made(self, names: tuple[str, ...]) -> Path:
        made = (self.made / name for name in names)
        return next((path for path in made if path.exists()), self.path)


def perform(job: Job, folder: TaskFolder) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    (name,) = job.subject
    file = next(file for file in read_manifest() if file.id == name)
    given = folder.path / "given"
    subject = Subject(given / f"{name}.onnx", folder.path / "made", file.inputs)
    for path in (given, subject.made):
        path.mkdir(exist_ok=True)
    shutil.copyfile(cached_path(file, find_cache()), subject.path)
    for task in job.tasks:
        # ONNX Runtime may bring the process down.
        with folder.running(task):
            folder.write(task, run_verb(name, task, subject))
    shutil.rmtree(subject.made)
    shutil.rmtree(given)


def run_verb(name: str, task: str, subject: Subject) -> VerbResult:
    """
    name  of the file, for the result
    """
    before = take_stock(subject.path.parent)
    said, began = io.StringIO(), time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            code = run_guarded(modelexport, [*fill_command(VERBS[task], subject), "--debug"])
        except BaseException:  # noqa: BLE001 - that anything comes out of the edge is what is looked for
            code = 3
            traceback.print_exc()
    seconds = round(time.perf_counter() - began, 2)
    after = take_stock(subject.path.parent)
    if changed := sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path)):
        return VerbResult(name, task, 3, f"it wrote where its input is: {', '.join(changed)}", seconds)
    reason = "" if code in (0, 1) else shorten_reason(said.getvalue(), subject)
    findings = count_findings(subject.file) if task == READ and subject.file is not None else None
    return VerbResult(name, task, code, reason, seconds, findings)


def take_stock(folder: Path) -> dict[str, tuple[int, int, int]]:
    """By name: what changes with every file in a folder that is written, replaced or made, external data as well."""
    status = {path.relative_to(folder).as_posix(): path.stat() for path in folder.rglob("*") if path.is_file()}
    return {name: (file.st_ino, file.st_size, file.st_mtime_ns) for name, file in status.items()}


def fill_command(command: str, subject: Subject) -> list[str]:
    """`extract {file} {part} -o {made}/part.onnx` → the arguments of the command line."""
    words = subject.words()
    filled: list[str] = []
    for word in command.split():
        filled += words.get(word.strip("{}"), (word.replace("{made}", str(subject.made)),)) if "{" in word else (word,)
    return filled


def shorten_reason(said: str, subject: Subject) -> str:
    """The message without the traceback before it, the hint behind it, and where the files are on this machine."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    text = (errors or lines or [""])[-1]
    text = text.replace(f"{subject.made}/", "").replace(str(subject.path), subject.path.name)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def count_findings(file: TaggedFile) -> Findings:
    provenance = file.provenance
    attributions = [entry.attribution for entry in provenance.nodes.values()]
    levels = Counter(attribution.confidence for attribution in attributions)
    inside = [module for path, module in provenance.hierarchy.modules.items() if path]
    classes = Counter(_judge_class(module) for module in inside if not module.container)
    return Findings(
        source=provenance.origin.exporter,
        nodes=len(attributions),
        modules=len(inside),
        layers=len({attribution.layer_id for attribution in attributions} - {None}),
        known=classes["known"],
        described=classes["described"],
        unknown=classes["unknown"],
        strong=levels[Confidence.STRONG] + levels[Confidence.EXACT],
        inferred=levels[Confidence.INFERRED],
        fallback=levels[Confidence.FALLBACK] + levels[Confidence.NONE],
        at_root=sum(
            attribution.confidence is Confidence.INFERRED
            and attribution.ancestor is not None
            and attribution.ancestor.path == ROOT
            for attribution in attributions
        ),
    )


def _judge_class(module: Module) -> str:
    if module.is_class_known:
        return "known"
    return "described" if module.class_name else "unknown"


if __name__ == "__main__":
    serve(perform)
