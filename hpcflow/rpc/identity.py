"""Who a process of a run is, and where a rank listens.

Every process of an attempt learns this from its environment, whoever started it: the supervisor, or a node
agent; nothing secret is on a command line or in a file. Never asks anybody.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hpcflow.errors import UserError

SUPERVISOR = "supervisor"
DRIVER = "driver"


class RankEndpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one rank of a role or of a command serves: `tcp://ADDRESS:PORT`, or `http://` if so probed."""

    rank: int
    host: str
    endpoint: str


@dataclass(frozen=True)
class ProcessIdentity:
    """One process of one attempt.

    `parent` is the pid of who started it where that is the parent, else None. `address` is what the
    process binds and advertises, `host` the name of its machine (of its node, as Slurm calls it);
    `control` is the supervisor's control endpoint.
    """

    run_dir: Path
    attempt: int
    control: str
    token: str = field(repr=False)
    role: str
    rank: int
    local_rank: int
    world_size: int
    address: str
    parent: int | None
    host: str = field(default_factory=socket.gethostname)

    @staticmethod
    def from_environ(environ: Mapping[str, str] = os.environ) -> ProcessIdentity:
        """Read what `to_environ` wrote.

        Raises:
            UserError: a variable is missing: the program was started by hand.
        """
        try:
            parent = environ["HPCFLOW_PARENT"]
            return ProcessIdentity(
                run_dir=Path(environ["HPCFLOW_RUN_DIR"]),
                attempt=int(environ["HPCFLOW_ATTEMPT"]),
                control=environ["HPCFLOW_CONTROL"],
                token=environ["HPCFLOW_TOKEN"],
                role=environ["HPCFLOW_ROLE"],
                rank=int(environ["HPCFLOW_RANK"]),
                local_rank=int(environ["HPCFLOW_LOCAL_RANK"]),
                world_size=int(environ["HPCFLOW_WORLD_SIZE"]),
                address=environ["HPCFLOW_ADDRESS"],
                parent=int(parent) if parent else None,
                host=environ["HPCFLOW_HOST"],
            )
        except KeyError as error:
            raise UserError(
                f"environment variable {error.args[0]} is not set",
                hint="the supervisor starts this program; start a run with `hpcflow submit`",
            ) from error

    def to_environ(self) -> dict[str, str]:
        """The variables that `from_environ` reads."""
        return {
            "HPCFLOW_RUN_DIR": str(self.run_dir),
            "HPCFLOW_ATTEMPT": str(self.attempt),
            "HPCFLOW_CONTROL": self.control,
            "HPCFLOW_TOKEN": self.token,
            "HPCFLOW_ROLE": self.role,
            "HPCFLOW_RANK": str(self.rank),
            "HPCFLOW_LOCAL_RANK": str(self.local_rank),
            "HPCFLOW_WORLD_SIZE": str(self.world_size),
            "HPCFLOW_ADDRESS": self.address,
            "HPCFLOW_HOST": self.host,
            "HPCFLOW_PARENT": "" if self.parent is None else str(self.parent),
        }
