"""The file of models: TOML, read into a plan.

    [fleet]                                   [[row]]
    steps = ["export", "verify", "int8"]      name = "bert"
    timeout = "10m"                           source = "models/bert"
                                              exporters = ["dynamo", "torchscript"]
    [steps.int8]
    verb = "quantize"                         [[row]]
    options = { weight-type = "int8" }        glob = "models/*/config.json"

    [budget]                                  [[row]]
    size = "400MB"                            table = "more.csv"

The file may come from somebody else. It can name models to read and steps of this program to run; what runs code
(Python callables, code that comes with a model, most variables of the environment) needs `trust`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from modelexport.errors import propose_name
from modelexport.fleet.entries import TRUST_HINT, EntryReader, is_inside, limits_of, resources_of
from modelexport.fleet.fleet_plan import STEP_NAME, ClusterSettings, Plan, Step, repeated_name
from modelexport.fleet.process import Limits
from modelexport.fleet.rows import RowMaker, expand_rows
from modelexport.fleet.sections import TomlSection, read_toml
from modelexport.fleet.verbs import LOADING, VERBS

# What somebody wants who says nothing: the file, whether it is right, and a page to look at.
DEFAULT_STEPS = ("export", "verify", "view")


def read_plan(path: Path, *, trust: bool = False) -> Plan:
    """Raises FleetInvalid, with the place, what was seen, and what is known.

    trust  what runs code may be asked for
    """
    document = read_toml(path)
    plan = _ManifestReader(EntryReader(path.parent.absolute(), trust)).read(document, path.stem)
    document.finish()
    return plan


class _ManifestReader:
    def __init__(self, entries: EntryReader) -> None:
        self._entries = entries

    def read(self, document: TomlSection, name: str) -> Plan:
        fleet = document.table("fleet")
        output = self._output(fleet)
        jobs, retries = fleet.count("jobs", 0, 1), fleet.count("retries", 1)
        defaults = self._steps(document.table("steps"), limits_of(fleet, Limits()))
        names = fleet.texts("steps") or DEFAULT_STEPS
        environment = self._entries.environment(fleet)
        load = self._entries.options(fleet.table("load"), LOADING)
        fleet.finish()
        maker = RowMaker(self._entries, defaults, names, environment, load, document.table("budget"))
        rows = tuple(expand_rows(document, self._entries.base, maker))
        if not rows:
            raise document.fault("row", "there are no rows", "Add one: [[row]] with a source, a glob or a table.")
        if (twice := repeated_name(row.name for row in rows)) is not None:
            raise document.fault("row", f"two rows have the name {twice!r}", "Give each of them a `name` of its own.")
        return Plan(name, rows, output, jobs, retries, self._cluster(document.table("cluster")))

    def _output(self, fleet: TomlSection) -> str:
        """Inside of the folder that the file is in: whoever runs it names other folders on the command line."""
        output = fleet.text_of("output")
        if output and not is_inside(output):
            raise fleet.fault("output", f"output is {output!r}, outside of the folder of the file", "Use --output.")
        return str(self._entries.base / output) if output else ""

    def _cluster(self, section: TomlSection) -> ClusterSettings:
        workers, hosts = section.count("workers", 0, 1), section.texts("hosts") or ()
        options = section.table("options").content
        # `job_script_prologue` of SLURM, `command` of a container.
        if options and not self._entries.trust:
            raise section.fault("options", "options of a cluster can run commands on its machines", TRUST_HINT)
        section.finish()
        return ClusterSettings(workers, hosts, options)

    def _steps(self, section: TomlSection, limits: Limits) -> Mapping[str, Step]:
        """Steps by name: those of the file, and each verb as a step of its name."""
        steps = {verb: Step(verb, verb, limits=limits) for verb in VERBS}
        for name, entry in section.tables():
            if not STEP_NAME.fullmatch(name):
                raise entry.fault("", f"{name!r} is no name of a step", "Use letters, digits, dots and dashes.")
            verb = entry.choice("verb", VERBS) or name
            if verb not in VERBS:
                raise entry.fault(
                    "", f"which verb is the step {name!r}?", propose_name(name, VERBS, "`verb` is one of")
                )
            steps[name] = Step(
                name,
                verb,
                entry.text_of("from"),
                self._entries.options(entry.table("options")),
                limits=limits_of(entry, limits),
                resources=resources_of(entry),
            )
            entry.finish()
        return steps
