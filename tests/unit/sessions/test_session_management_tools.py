"""The gateway's own tools show a principal its own sessions."""

import itertools
from typing import Final

from gateway.sessions.session_management_tools import own_sessions
from session_store import MemoryBackend, Principal
from session_store.current_tool_session import bound_session, tool_session
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement

ALIKE: Final = (Principal(issuer="a:b", subject="c"), Principal(issuer="a", subject="b:c"))


@requirement("wall.authority")
async def test_the_gateways_tools_show_each_principal_its_own_sessions() -> None:
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    for principal, _ in itertools.product(ALIKE, range(2)):
        await backend.sessions.create(a_session(clock, principal=principal))
    everything = await backend.sessions.page(after="", limit=10)
    assert len(everything) == 4
    for here in everything:
        with bound_session(tool_session(here, sessions=backend.sessions, state=backend.state)):
            found = await own_sessions(backend.sessions)
        assert {session.id for session in found} == {s.id for s in everything if s.principal == here.principal}
