"""Quotas and rates belong to one principal each."""

from typing import Any, Final

import pytest

from gateway.config.policy import PolicySettings
from gateway.policy.quotas import PrincipalQuotas
from gateway.policy.rate_limits import RateLimits
from session_store import MemoryBackend, Principal, Session
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from transports.inbound_port import Refused

pytestmark = pytest.mark.anyio
ALIKE: Final = (Principal(issuer="a:b", subject="c"), Principal(issuer="a", subject="b:c"))


@requirement("wall.authority")
async def test_quotas_and_rates_are_each_principals_own() -> None:
    assert str(ALIKE[0]) == str(ALIKE[1])
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    limits = {"principal_sessions": 1, "principal_processes": 1, "principal_rate": {"per_s": 0.001, "burst": 1}}
    settings = PolicySettings.model_validate(limits)
    rates = RateLimits(settings, backend.rates)
    more: dict[str, Any] = {"kept_s": 60.0, "run": "", "runs": backend.directory.replicas}
    quotas = PrincipalQuotas(settings, backend.quotas, backend.sessions, rates=rates, **more)

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
