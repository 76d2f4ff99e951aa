"""How the ranks of one role meet: the only place that sets RANK and its kin.

Rank 0 binds a store to a port that the system chooses (`open_store`) and publishes it; every rank
then calls `join`. DeepSpeed takes over the group that stands already: it never looks for MPI, and
its shared-memory kernels, which it would compile on first use, are switched off (training does not
call them).

Who waits for whom: `join` waits for all ranks of the role, at most `timeout_s`; the same limit
holds for every later collective of the group.
"""

from __future__ import annotations

import importlib
import os
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import psutil
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hpcflow.errors import UserError
from hpcflow.weights.store import join_store, open_store

__all__ = ["GroupSpot", "interface_of", "join", "leave", "open_store"]

SHM_KERNELS = "deepspeed_shm_comm"


@dataclass(frozen=True)
class GroupSpot:
    """One rank's spot in its role's group, and the store where the group meets."""

    address: str
    port: int
    rank: int
    local_rank: int
    world_size: int


def join(
    spot: GroupSpot,
    *,
    backend: Literal["gloo", "nccl"],
    timeout_s: float,
    store: TCPStore | None = None,
) -> None:
    """Make the default process group; rank 0 passes the store that it opened.

    Raises torch.distributed.DistError (or RuntimeError) where a rank does not come in time.
    """
    device = torch.device("cuda", spot.local_rank) if backend == "nccl" else None
    _publish(spot, gloo_interface=interface_of(spot.address))
    os.environ.setdefault("DS_ACCELERATOR", "cpu" if device is None else "cuda")
    if store is None:
        store = join_store(spot.address, spot.port, timeout_s=timeout_s)
    if device is not None:
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=store,
        rank=spot.rank,
        world_size=spot.world_size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device,
    )
    # Imported here: DeepSpeed settles on its accelerator when it is imported.
    deepspeed = importlib.import_module("deepspeed")
    # torch renamed collectives that DeepSpeed still calls by their old names, at every step.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    deepspeed.ops.__compatible_ops__[SHM_KERNELS] = False
    deepspeed.init_distributed(
        dist_backend=backend,
        auto_mpi_discovery=False,
        verbose=False,
        timeout=timedelta(seconds=timeout_s),
    )


def leave() -> None:
    """Take the default process group down, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def interface_of(address: str) -> str:
    """Name of the network interface that has `address`, as gloo wants it ("lo", "eth0").

    Raises UserError where no interface of this host has it.
    """
    interfaces = psutil.net_if_addrs()
    for name, addresses in interfaces.items():
        if any(entry.address.split("%")[0] == address for entry in addresses):
            return name
    raise UserError(
        f"no network interface of this host has the address {address}",
        hint=f"interfaces: {', '.join(sorted(interfaces))}",
    )


def _publish(spot: GroupSpot, *, gloo_interface: str) -> None:
    os.environ.update(
        RANK=str(spot.rank),
        LOCAL_RANK=str(spot.local_rank),
        WORLD_SIZE=str(spot.world_size),
        MASTER_ADDR=spot.address,
        MASTER_PORT=str(spot.port),
    )
    os.environ.setdefault("GLOO_SOCKET_IFNAME", gloo_interface)
