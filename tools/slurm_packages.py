"""The programs of a private Slurm cluster: found on this machine, or installed as Debian packages.

Installs only where root runs it and apt-get is there, and keeps the packages from starting their own daemons.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_layout import UserError

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
POLICY = Path("/usr/sbin/policy-rc.d")
INSTALL_LIMIT_S = 240.0
LOG_LINES = 20


def ensure_programs() -> None:
    """Install the Debian packages where root may, else say what to install."""
    if not (missing := _missing()):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise UserError(
            f"not installed: {', '.join(missing)}. Debian 12, Ubuntu: sudo apt-get install"
            f" --no-install-recommends {' '.join(PACKAGES)}. Elsewhere: Slurm with its daemons, and munge"
        )
    say(f"installing {' '.join(PACKAGES)}")
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *PACKAGES]
    with _no_services():
        if (done := _apt(install)).returncode:
            _apt(["apt-get", "update", "-q"])
            done = _apt(install)
    if done.returncode or (missing := _missing()):
        tail = "\n".join(done.stdout.splitlines()[-LOG_LINES:])
        raise UserError(f"apt-get did not install {', '.join(missing)}:\n{tail}")


def _missing() -> list[str]:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return [program for program in PROGRAMS if shutil.which(program, path=path) is None]


def _apt(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [command[0], "-o", "DPkg::Lock::Timeout=120", *command[1:]],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_LIMIT_S,
        check=False,
    )


@contextmanager
def _no_services() -> Iterator[None]:
    """Keep packages from starting their own daemons, by Debian's means; a policy that is there stays."""
    try:
        with POLICY.open("x") as policy:
            policy.write("#!/bin/sh\nexit 101\n")
    except FileExistsError:
        yield
        return
    try:
        POLICY.chmod(0o755)
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def say(text: str) -> None:
    """To the person, not into what a script reads."""
    print(f"slurm_cluster: {text}", file=sys.stderr)
