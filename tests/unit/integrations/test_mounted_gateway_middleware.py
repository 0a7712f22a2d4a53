"""The sessions of a gateway in an app: what a request gets whose session cannot be used here."""

from types import SimpleNamespace
from typing import Any

import pytest

from gateway import GatewaySessionMiddleware
from tests.requirements import requirement
from tests.unit.integrations.apps import Client
from transports.inbound_port import OwnedByPeer


@requirement("app.embedding")
async def test_a_request_whose_session_another_process_owns_is_told_so_before_the_app_sees_it() -> None:
    async def no_app(*_: Any) -> None:
        pytest.fail("it has no session")

    async def who(_: Any) -> None:
        return None

    async def resume_or_open(*_: Any) -> None:
        raise OwnedByPeer(None)

    guard = SimpleNamespace(
        headers=lambda scope: {}, client_network=lambda scope, headers: "", is_secure=lambda scope, headers: False
    )
    gateway: Any = SimpleNamespace(
        paths=("/none",),
        guard=guard,
        senders=SimpleNamespace(who=who),
        resolver=SimpleNamespace(resume_or_open=resume_or_open),
    )
    answer = await Client(GatewaySessionMiddleware(no_app, gateway)).get()
    assert answer.status == 421 and b"SessionMiddleware" in answer.body
