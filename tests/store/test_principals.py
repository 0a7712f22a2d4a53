"""Principals as keys: whoever reads like somebody else shares nothing with them."""

import itertools
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.config.policy import PolicySettings
from gateway.policy.quotas import PrincipalQuotas
from gateway.policy.rate_limits import RateLimits
from gateway.sessions.tools import own_sessions
from session_store import MemoryBackend, Principal, Session
from session_store.context import bound_session, tool_session
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from transports.inbound_port import Refused

pytestmark = pytest.mark.anyio

ALIKE: Final = (Principal(issuer="a:b", subject="c"), Principal(issuer="a", subject="b:c"))


@requirement("wall.authority")
@example([("a:b", "c"), ("a", "b:c")])
@given(st.lists(st.tuples(st.text('a:"\\,[ ]', max_size=4), st.text('a:"\\,[ ]', max_size=4)), unique=True, max_size=8))
def test_no_two_principals_have_one_key(names: list[tuple[str, str]]) -> None:
    keys = {Principal(issuer=issuer, subject=subject).key for issuer, subject in names}
    assert len(keys) == len(names)


@requirement("wall.authority")
async def test_quotas_and_rates_are_each_principals_own() -> None:
    assert str(ALIKE[0]) == str(ALIKE[1])
    backend, clock = MemoryBackend(), FakeClock()
    rate: dict[str, Any] = {"per_s": 0.001, "burst": 1}
    settings = PolicySettings.model_validate(
        {"principal_sessions": 1, "principal_processes": 1, "principal_rate": rate}
    )
    rates = RateLimits(settings, backend.rates)
    replicas = backend.directory.replicas
    quotas = PrincipalQuotas(
        settings, backend.quotas, backend.sessions, rates=rates, kept_s=60.0, run="", runs=replicas
    )

    async def message(session: Session) -> None:
        await rates.message(session.principal, "")

    sessions = [a_session(clock, principal=principal) for principal in ALIKE]
    for session in sessions:
        await quotas.session(await backend.sessions.create(session))
        await quotas.process(session)
        await message(session)
    for session in sessions:
        for count in (quotas.process, message):
            with pytest.raises(Refused):
                await count(session)


@requirement("wall.authority")
async def test_the_gateways_tools_show_each_principal_its_own_sessions() -> None:
    backend, clock = MemoryBackend(), FakeClock()
    for principal, _ in itertools.product(ALIKE, range(2)):
        await backend.sessions.create(a_session(clock, principal=principal))
    everything = await backend.sessions.page(after="", limit=10)
    for here in everything:
        with bound_session(tool_session(here, sessions=backend.sessions, state=backend.state)):
            found = await own_sessions(backend.sessions)
        assert {session.id for session in found} == {s.id for s in everything if s.principal == here.principal}
