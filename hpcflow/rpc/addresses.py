"""Which of its addresses a process binds and tells others: one that they reach, and no wider.

Never binds all interfaces. Asks the kernel's routing table and the resolver; sends nothing.
"""

from __future__ import annotations

import socket

import psutil

from hpcflow.errors import UserError

LOOPBACK = "127.0.0.1"


def towards(host: str, port: int) -> str:
    """Our own address on the route to `host`: who is reached through it can answer to it.

    Raises:
        OSError: there is no route.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # of a datagram socket: only looks the route up
        found: str = probe.getsockname()[0]
    return found


def towards_endpoint(endpoint: str) -> str:
    """Our own address on the route to `tcp://HOST:PORT`."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return towards(host.strip("[]"), int(port))


def of_name(name: str) -> str:
    """The address of a host by its name, or the address itself.

    Raises:
        UserError: nobody knows the name.
    """
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        hint = "name the network interface to use: communication.interface"
        raise UserError(f"the address of host {name} is not known here: {error}", hint=hint) from error
    # IPv4 first: what is reached by one is rarely reached by the other.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])


def of_interface(name: str) -> str:
    """The IPv4 address of a network interface of this host.

    Raises:
        UserError: there is no such interface, or it has none.
    """
    interfaces = psutil.net_if_addrs()
    for entry in interfaces.get(name, []):
        if entry.family == socket.AF_INET:
            return entry.address
    raise UserError(
        f"communication.interface {name}: no such interface with an IPv4 address on {socket.gethostname()}",
        hint=f"interfaces: {', '.join(sorted(interfaces))}",
    )
