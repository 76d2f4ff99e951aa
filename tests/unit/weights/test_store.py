"""Stores: bound to one address, on a port that nobody chose."""

from __future__ import annotations

import psutil
import pytest

from hpcflow.weights.store import join_store, open_store


def test_a_store_listens_on_its_address_only() -> None:
    _, port = open_store("127.0.0.1", timeout_s=5)
    listening = [
        connection.laddr
        for connection in psutil.Process().net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    ]
    assert [address.ip for address in listening] == ["127.0.0.1"]


def test_two_stores_have_two_ports_and_do_not_mix() -> None:
    first, first_port = open_store("127.0.0.1", timeout_s=5)
    second, second_port = open_store("127.0.0.1", timeout_s=5)
    assert first_port != second_port
    first.set("key", "one")
    second.set("key", "two")
    assert join_store("127.0.0.1", first_port, timeout_s=5).get("key") == b"one"


def test_a_missing_key_times_out() -> None:
    _, port = open_store("127.0.0.1", timeout_s=5)
    joined = join_store("127.0.0.1", port, timeout_s=0.2)
    with pytest.raises(RuntimeError):
        joined.get("never set")


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(OSError, match="assign"):
        open_store("192.0.2.1", timeout_s=1)
