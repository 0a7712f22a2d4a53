"""Quotas and rates belong to one principal each."""

from typing import Any, Final

import pytest

from gateway.config.policy import PolicySettings
from gateway.policy.principal_quotas import PrincipalQuotas
from gateway.policy.rate_limits import RateLimits
from session_store import MemoryBackend, Principal, Session
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from transports.inbound_port import Refused

ALIKE: Final = (Principal(issuer="a:b", subject="c"), Principal(issuer="a", subject="b:c"))


def quotas_of(backend: MemoryBackend, limits: dict[str, Any]) -> tuple[PrincipalQuotas, RateLimits]:
    settings = PolicySettings.model_validate(limits)
    rates = RateLimits(settings, backend.rates)
    more: dict[str, Any] = {"kept_s": 60.0, "run": "this", "runs": backend.directory.replicas}
    return PrincipalQuotas(settings, backend.quotas, backend.sessions, rates=rates, **more), rates


@requirement("wall.authority")
async def test_quotas_and_rates_are_each_principals_own() -> None:
    assert str(ALIKE[0]) == str(ALIKE[1])
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    limits = {"principal_sessions": 1, "principal_processes": 1, "principal_rate": {"per_s": 0.001, "burst": 1}}
    quotas, rates = quotas_of(backend, limits)

    async def message(session: Session) -> None:
        await rates.count_message(session.principal, "")

    sessions = [a_session(clock, principal=principal) for principal in ALIKE]
    for session in sessions:
        await quotas.hold_session(await backend.sessions.create(session))
        await quotas.hold_process(session)
        await message(session)
    for session in sessions:
        for count in (quotas.hold_process, message):
            with pytest.raises(Refused):
                await count(session)


async def test_slots_of_what_has_ended_are_found_when_a_quota_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    quotas, _ = quotas_of(backend, {"principal_sessions": 1, "principal_processes": 1})
    session, later = a_session(clock), a_session(clock)
    await quotas.hold_session(session)  # and its store forgets it
    with pytest.raises(Refused, match="sessions"):
        await quotas.hold_session(later)
    clock.pass_time(6)
    later = await backend.sessions.create(a_session(clock))
    await quotas.hold_session(later)
    with pytest.raises(Refused):
        await quotas.hold_session(session)
    await quotas.release_session(later)
    await quotas.hold_session(session)

    await backend.quotas.hold(f"processes/{session.counted_as}", "dead/1", 1, for_s=60.0)
    end = await quotas.hold_process(session)
    with pytest.raises(Refused, match="server processes"):
        await quotas.hold_process(session)
    end()
    await quotas.settled()
    await quotas.hold_process(session)

    monkeypatch.setattr("gateway.policy.principal_quotas._MAX_CHECKED", 0)
    for _ in range(2):
        with pytest.raises(Refused, match="server processes"):
            await quotas.hold_process(session)
