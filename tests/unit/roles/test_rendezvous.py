"""Finding the network interface of an address."""

from __future__ import annotations

import socket

import psutil
import pytest

from hpcflow.errors import UserError
from hpcflow.roles.rendezvous import interface_of


def test_every_address_of_this_host_leads_to_its_interface() -> None:
    for name, addresses in psutil.net_if_addrs().items():
        for entry in addresses:
            if entry.family == socket.AF_INET:
                assert interface_of(entry.address) == name


def test_a_foreign_address_is_refused_with_the_interfaces_there_are() -> None:
    with pytest.raises(UserError, match=r"no network interface.*192\.0\.2\.1"):
        interface_of("192.0.2.1")
