"""Key-value stores for rendezvous, bound to one address and to a port that the system chooses.

A port is never chosen, released and bound again: the listening socket itself becomes the store,
so that no other process can take the port in between. It listens on the given address only.

Who waits for whom: opening returns at once; whoever joins waits until the store answers, at most
`timeout_s` seconds.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]


def open_store(address: str, *, timeout_s: float) -> tuple[TCPStore, int]:
    """Bind a store on `address`; returns it and its port, to be published to the others.

    `timeout_s` bounds every later wait on the store. Raises OSError where the address is not ours.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family)
    port: int = listener.getsockname()[1]
    # The store takes over the file descriptor and closes it.
    store = TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        master_listen_fd=listener.detach(),
    )
    return store, port


def join_store(address: str, port: int, *, timeout_s: float) -> TCPStore:
    """Connect to a store that another process opened.

    Raises torch.distributed.DistError where nobody answers within `timeout_s` seconds.
    """
    return TCPStore(
        address,
        port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
    )
