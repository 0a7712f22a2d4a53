"""Where gateways reach each other: what an operator may write, and what is found where nothing is written."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from gateway.config.addresses import is_same_place, own_address_towards
from gateway.config.settings import GatewaySettings
from tests.requirements import requirement
from tests.support.gateway_process import ROOT

pytestmark = requirement("rep.any")

ELSEWHERE = """
import asyncio
from gateway.config.addresses import own_address_towards
for url in ("redis://user:pw@10.9.0.2:6379/0", "redis+sentinel://10.9.0.2:1,10.9.0.3:1/main", "redis://10.9.0.1:6379"):
    print(asyncio.run(own_address_towards(url)))
"""
NETWORK = "ip addr add 10.9.0.1/24 dev lo && ip link set lo up"


@requirement("ops.config")
@pytest.mark.parametrize("address", ["http://10.0.0.7:9000", "10.0.0.7", "10.0.0.7:9000/mcp", ":9000", "a b:1"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(ValidationError, match="HOST:PORT, without a scheme or a path"):
        GatewaySettings(advertise=address)
    assert GatewaySettings(advertise="[fd00::7]:9000").advertise == "[fd00::7]:9000"


@requirement("ops.config")
@pytest.mark.parametrize(
    "given",
    [
        {"advertise": "127.0.0.1:8080"},
        {"advertise": "localhost:8080"},
        {"host": "0.0.0.0", "advertise": "10.0.0.7:8080", "anonymous": True, "allowed_hosts": ["*"]},
        {"advertise": "10.0.0.7:8080", "internal": "127.0.0.1:8080"},
    ],
)
def test_clients_and_gateways_are_served_at_two_ports(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="other gateways need a port of their own"):
        GatewaySettings.model_validate(given)


def test_a_mapped_port_may_be_that_of_clients_on_another_host() -> None:
    assert GatewaySettings(advertise="10.0.0.7:8080", internal="127.0.0.1:9000").internal
    assert GatewaySettings(advertise="10.0.0.7:8080").advertise, "another address of this machine"
    assert not is_same_place("127.0.0.1:0", "127.0.0.1:0")


async def test_a_store_on_this_machine_means_gateways_on_this_machine() -> None:
    for url in ("redis://127.0.0.1:6379/0", "redis://localhost", "redis://[::1]:6379", "redis://nowhere.invalid:1"):
        assert await own_address_towards(url) == "", url


def test_a_store_on_another_machine_sees_the_address_at_which_gateways_there_find_this_one() -> None:
    apart = ["unshare", "--user", "--map-root-user", "--net", "sh", "-ec", f'{NETWORK} && "$0" -c "$1"']
    ran = subprocess.run([*apart, sys.executable, ELSEWHERE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stdout.split() == ["10.9.0.1"] * 3, ran.stderr
