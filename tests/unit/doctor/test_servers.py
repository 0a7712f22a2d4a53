"""`gateway.doctor.servers`: what the doctor says of servers and of the policy for them."""

import pytest

from gateway.config.settings import Settings
from gateway.doctor.servers import check_servers
from tests.requirements import requirement

pytestmark = pytest.mark.anyio


@requirement("ops.check")
async def test_a_policy_is_not_fine_while_a_server_does_not_answer() -> None:
    missing = {"command": "/does/not/exist", "tools": {"drop_*": {"operation": "eval"}}}
    settings = Settings.model_validate({"mcpServers": {"notes": missing, "search": {"command": "/nor/this"}}})
    found = [finding async for finding in check_servers(settings)]
    assert [(one.check, one.state) for one in found] == [
        ("server notes", "error"),
        ("server search", "error"),
        ("policy", "warning"),
    ]
    assert "not checked: notes, search" in found[-1].what and found[-1].do
