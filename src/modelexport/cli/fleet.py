"""The verb for many models: `fleet`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelexport.cli import options as cli


@click.command()
@cli.model_argument("models")
@cli.target_option("The folder for results and files; MODELS-fleet beside MODELS if it is left out.", required=False)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes at a time; one for each core if not given. Of a cluster: workers.",
)
@click.option("--only", multiple=True, metavar="ROW", help="Run this row; repeatable.")
@click.option("--retry-failed", is_flag=True, help="Run steps again that failed before.")
@click.option("--rerun", is_flag=True, help="Run everything again.")
@click.option("--timeout", metavar="TIME", help="For each step, such as 10m; goes over those of MODELS.")
@click.option("--memory", metavar="SIZE", help="For each step, such as 8GB; goes over those of MODELS.")
@click.option(
    "--cluster",
    metavar="ADDRESS|KIND",
    default="",
    help="Run steps on a Dask cluster: tcp://HOST:PORT, or one that is started: local, ssh, slurm, kubernetes.",
)
@click.option(
    "--share",
    "address",
    metavar="URL",
    default="",
    help="Share files by this fsspec address, where workers do not see the folder.",
)
@click.option(
    "--online", is_flag=True, help="Fetch models from the hub; without it, those that were fetched before are used."
)
@click.option(
    "--trust", is_flag=True, help="MODELS may ask for code to be run: callables, --trust-remote-code, variables."
)
@click.option("--dry-run", is_flag=True, help="Show what would be run, and run nothing.")
@click.option("--all", "everything", is_flag=True, help="Show all rows, also those of large fleets that are fine.")
@cli.report_options("text", "json", "csv", to_file=False)
def fleet(*, models: Path, report: cli.Report, everything: bool, jobs: int | None, **options: Any) -> int:
    """Run the steps that MODELS asks for on each of its models: export, verify, quantize, profile and more.

    \b
    modelexport fleet models.toml --dry-run
    modelexport fleet models.toml --jobs 4
    modelexport fleet models.toml --only bert --retry-failed
    modelexport fleet models.toml --cluster tcp://10.0.0.1:8786 -o /shared/fleet

    Each step of each row is this program in a process of its own, with a limit for time and memory. A row that fails
    fails alone. What was done before with the same model, versions and options is not done again. The folder has
    results.jsonl, a page fleet.html, and for each step its files and log.txt.

    \b
    exit codes  0  every step is ok, and every budget kept
                1  a step failed or found something, or a budget is broken
                2  MODELS is wrong, or the cluster cannot be used; nothing else was run
    """
    from modelexport.api.fleet import FleetOptions
    from modelexport.api.fleet import fleet as run_fleet
    from modelexport.show.text.fleet import fleet_lines, plan_lines, watched_fleet

    given = FleetOptions(jobs=jobs or 0, **options)
    with watched_fleet(quiet=report.verbosity.quiet or given.dry_run) as listener:
        result = run_fleet(models, given, listener=listener)
    # A plan is what was asked for, also with --quiet.
    if given.dry_run:
        report.show(result, lambda: plan_lines(result), "planned")
        return 0
    report.show_unless_quiet(result, lambda: fleet_lines(result, everything=everything))
    report.print_notes(result.notes)
    return 0 if result.ok else 1
