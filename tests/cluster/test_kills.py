"""Gateways that are killed, or restarted in order, under load behind the shipped load balancers."""

import asyncio

import pytest

from tests.cluster.kills import BROKEN, figures
from tests.requirements import requirement
from tests.support.compose_topology import BALANCERS


@requirement("rep.takeover", "rep.drain", "ops.deploy")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("rolling", [False, True])
@pytest.mark.parametrize("balancer", BALANCERS)
def test_a_lost_gateway_costs_errors_but_no_connection_and_no_second_execution(balancer: str, rolling: bool) -> None:
    found = asyncio.run(figures(balancer, 3, rolling=rolling))
    assert found["python"] and found["typescript"] and not any(found[name] for name in BROKEN), found
    assert found["refused"] < found["sent"] / 20, "a load balancer leaves out gateways that have come back"
