"""Start the daemons of a private Slurm cluster and see it when one of them ends.

Never ends a process: that is slurm_stop's part. The starter waits for a condition with a limit, and for no
longer than its daemons live.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from slurm_layout import Layout
from slurm_stop import POLL_S, environment

START_LIMIT_S = 60.0
LOG_LINES = 20
CLASH = "Address already in use"


class StartError(Exception):
    """The cluster did not come up: which part, and the end of its log."""

    def __init__(self, message: str, *, clash: bool = False) -> None:
        super().__init__(message)
        self.clash = clash


class Daemons:
    """The daemons of one start, in the foreground of sessions of their own, so that their ends are seen."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> None:
        """Start one; its log is log/NAME.log, its streams go to log/NAME.out."""
        variables = {
            key: value for key, value in environment(self.layout).items() if key in _KEPT_FOR_DAEMONS
        }
        with (self.layout.logs / f"{name}.out").open("wb") as streams:
            self.started[name] = subprocess.Popen(
                command,
                env=variables,
                cwd=self.layout.logs,
                stdin=subprocess.DEVNULL,
                stdout=streams,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Until the condition holds; raises StartError when a daemon ends before, or at the limit."""
        deadline = time.monotonic() + START_LIMIT_S
        while not condition():
            for name, process in self.started.items():
                if (code := process.poll()) is not None:
                    raise self._failed(f"{name} ended with code {code}", name)
            if time.monotonic() > deadline:
                raise self._failed(f"{what} after {START_LIMIT_S:.0f} s", list(self.started)[-1])
            time.sleep(POLL_S)

    def _failed(self, what: str, name: str) -> StartError:
        streams, log = (self.layout.logs / f"{name}.{kind}" for kind in ("out", "log"))
        shown = log if log.is_file() and log.stat().st_size else streams
        lines = shown.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return StartError(
            "\n".join([f"{what}. The end of {shown}:", *lines]),
            clash=any(CLASH in line for line in lines),
        )


_KEPT_FOR_DAEMONS = frozenset({"PATH", "HOME", "LANG", "TZ", "SLURM_CONF"})
