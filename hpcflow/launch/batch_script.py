"""The text of a run's Slurm script, from `sbatch/job.sbatch.j2`.

Quotes whatever a person may have typed; never submits and never asks Slurm. The script only becomes
the supervisor, which starts the roles: none is started here.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import jinja2

from hpcflow.plan.plan import Component, Plan
from hpcflow.rundir import RunDir
from hpcflow.spec.run import RunSpec
from hpcflow.spec.slurm import Slurm

TEMPLATE = "job.sbatch.j2"
_PACKAGE = Path(__file__).resolve().parent.parent


def with_defaults(plan: Plan, environ: Mapping[str, str]) -> Plan:
    """The plan with a person's SBATCH_PARTITION and SBATCH_CONSTRAINT where the spec names none."""
    partition, constraint = environ.get("SBATCH_PARTITION"), environ.get("SBATCH_CONSTRAINT")
    return replace(
        plan,
        components=tuple(
            replace(
                component,
                partition=component.partition or partition or None,
                constraint=component.constraint or constraint or None,
            )
            for component in plan.components
        ),
    )


def stated(slurm: Slurm) -> frozenset[str]:
    """Long names of the options for which the script's line is to count, not a person's SBATCH_ variable."""
    given = {"account": slurm.account, "qos": slurm.qos}
    named = {name for name, value in given.items() if value is not None}
    # `with_defaults` has put the variables of partition and constraint into the script.
    return frozenset({"time", "partition", "constraint", *named, *slurm.options})


def render(spec: RunSpec, plan: Plan, run: RunDir, *, withdrawn: Path, python: str = sys.executable) -> str:
    """The script that `sbatch` would be given; `python` starts the supervisor on the batch node.

    A job that finds `withdrawn` ends at once: nobody knows of it.
    """
    template = _environment().get_template(TEMPLATE)
    return template.render(
        name=spec.name,
        log=log_pattern(run.batch_log),
        slurm=spec.slurm,
        plan=plan,
        components=[(component, gpus(component)) for component in plan.components],
        options=_options(spec.slurm),
        environment=[*spec.slurm.environment.items(), *spec.slurm.nccl.items()],
        withdrawn=str(withdrawn),
        command=[python, "-m", "hpcflow.job", str(run.path), "slurm"],
    )


def log_pattern(path: Path) -> str:
    """A path as `--output` takes it: no `%` of it is a field, no backslash is lost.

    Slurm reads a pattern with a backslash word by word but for the backslashes.
    """
    text = str(path)
    return text.replace("\\", "\\\\") if "\\" in text else text.replace("%", "%%")


def gpus(component: Component) -> str:
    """The value of `--gpus-per-node`."""
    kind = f"{component.gpu_type}:" if component.gpu_type is not None else ""
    return f"{kind}{component.gpus_per_node}"


def _options(slurm: Slurm) -> list[str]:
    """Extra options: `true` gives a bare option, `false` leaves it out."""
    return [
        f"--{name}" if value is True else f"--{name}={value}"
        for name, value in slurm.options.items()
        if value is not False
    ]


def _environment() -> jinja2.Environment:
    """Templates of the installed package, or of the source tree that the package lies in."""
    installed = _PACKAGE / "_sbatch"
    folder = installed if installed.is_dir() else _PACKAGE.parent / "sbatch"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["directive"] = _quote_directive
    environment.filters["shell"] = shlex.quote
    return environment


def _quote_directive(value: str) -> str:
    """A value as sbatch reads it in a `#SBATCH` line: double quotes, backslash before `"` and `\\`."""
    if value and all(letter.isalnum() or letter in "-_=+:./,@%" for letter in value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
