"""Addresses on loopback: the only network that every machine has."""

from __future__ import annotations

import pytest

from hpcflow.errors import UserError
from hpcflow.rpc import addresses


def test_our_address_is_the_one_on_the_route() -> None:
    assert addresses.towards("127.0.0.1", 9) == "127.0.0.1"
    assert addresses.towards("localhost", 9) == "127.0.0.1"


def test_an_endpoint_names_host_and_port() -> None:
    assert addresses.towards_endpoint("tcp://127.0.0.1:4711") == "127.0.0.1"


def test_an_interface_has_an_address_or_is_refused() -> None:
    assert addresses.of_interface("lo") == "127.0.0.1"
    with pytest.raises(UserError, match=r"communication\.interface eth99: no such interface") as caught:
        addresses.of_interface("eth99")
    assert "lo" in caught.value.hint
