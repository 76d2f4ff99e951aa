"""The `hpcflow` command: options, and errors to exit codes. Imports nothing slow, so that `--help` is fast.

Each command imports what it needs, calls one function and prints. Exit codes: 0 done, 2 the user's spec,
data, flags or environment, 3 the run ended with a fault, 4 the cluster refused, 130 interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from hpcflow import __version__
from hpcflow.errors import EXIT_USER, HpcflowError

# Of a path that the system refused: it may be the length that was wrong.
SHOWN_PATH = 200

app = typer.Typer(
    name="hpcflow",
    help="PPO post-training of language models as supervised, resumable jobs.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

SpecPath = Annotated[Path, typer.Argument(metavar="SPEC", help="The spec, for example configs/ppo.yaml.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change one key; may be repeated.")
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, its name, or a job id.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Follow = Annotated[bool, typer.Option("--follow", help="Watch until the run is over; Ctrl-C stops it.")]


def main() -> None:
    """Run the command line; a HpcflowError becomes its message and its exit code."""
    try:
        app()
    except HpcflowError as error:
        print(f"hpcflow: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        # A full disk, a folder without permission, a name that is too long: whatever the system refuses.
        print(f"hpcflow: {_refused(error)}", file=sys.stderr)
        sys.exit(EXIT_USER)


def _refused(error: OSError) -> str:
    """One line on what the operating system refused, and for which path."""
    where = "" if error.filename is None else f"{_shown(str(error.filename))}: "
    return f"{where}{error.strerror or error}"


def _shown(path: str) -> str:
    return path if len(path) <= SHOWN_PATH else f"{path[:SHOWN_PATH]}..."


def _version(wanted: bool) -> None:
    if wanted:
        print(f"hpcflow {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options that belong to no command."""


@app.command()
def plan(spec: SpecPath, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Show where each role would run and all batch sizes."""
    from hpcflow.cli import submit as commands

    commands.plan(spec, overrides or [], as_json=as_json)


@app.command()
def submit(
    spec: SpecPath,
    overrides: Overrides = None,
    run_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run folder [default: a new one in ./runs].")
    ] = None,
    cluster: Annotated[
        Literal["auto", "slurm", "local"], typer.Option(help="Where to run; auto says what it chose.")
    ] = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run; write and start nothing.")
    ] = False,
    follow: Follow = False,
    as_json: AsJson = False,
) -> None:
    """Check everything, make the run folder and start the run."""
    from hpcflow.cli import submit as commands

    if dry_run:
        commands.dry_run(spec, overrides or [], run_dir, cluster, as_json=as_json)
        return
    _exit(commands.submit(spec, overrides or [], run_dir, cluster, follow=follow, as_json=as_json))


@app.command()
def resume(run: Run, follow: Follow = False, as_json: AsJson = False) -> None:
    """Start the next attempt of a run that was stopped, failed or lost."""
    from hpcflow.cli import submit as commands

    _exit(commands.resume(run, follow=follow, as_json=as_json))


@app.command()
def status(run: Run, as_json: AsJson = False) -> None:
    """Show what a run is doing, or how it ended."""
    from hpcflow.cli import status as commands

    commands.status(run, as_json=as_json)


@app.command()
def logs(
    run: Run,
    role: Annotated[
        str | None, typer.Option(help="Only this role, command or step_..., or driver, supervisor or batch.")
    ] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank.")] = None,
    attempt: Annotated[
        str | None, typer.Option(metavar="N|all", help="Another attempt than the last, or all.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the run is over.")] = False,
) -> None:
    """Print the logs, each line with its attempt, role and rank."""
    from hpcflow.cli import logs as commands

    commands.logs(run, role=role, rank=rank, attempt=attempt, follow=follow)


@app.command()
def cancel(
    run: Run,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Wait so long for the checkpoint.")
    ] = 120.0,
    as_json: AsJson = False,
) -> None:
    """End a run: save a checkpoint, then stop it; one that waits leaves the queue."""
    from hpcflow.cli import status as commands

    commands.cancel(run, timeout, as_json=as_json)


def _exit(code: int) -> None:
    if code:
        raise typer.Exit(code)
