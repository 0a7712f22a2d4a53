"""What is known of a tool that a client calls at a URL of several servers."""

from typing import Any, cast

import pytest

from gateway.relay.endpoint_servers import EndpointServers
from tests.requirements import requirement
from tests.support.paged_server import PagedServer, a_call, merged
from transports.era import Era

pytestmark = requirement("ext.apps")

TICK = {"name": "tick", "annotations": {"readOnlyHint": True}, "_meta": {"ui": {"visibility": ["app"]}}}
SHOW = {"name": "show", "_meta": {"ui": {"resourceUri": "ui://clock/app.html"}}}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("c__tick", ("c", "tick", True)),
        ("tick", ("c", "tick", True)),
        ("c__show", ("c", "show", False)),
        ("show", ("c", "show", False)),
        ("none", ("", "", False)),
    ],
)
def test_a_tool_that_an_app_calls_without_its_prefix_is_known_like_any_other(
    name: str, found: tuple[str, str, bool]
) -> None:
    parts: Any = merged(PagedServer("p", {}, probed=[{"name": "tick"}]), PagedServer("c", {}, probed=[TICK, SHOW]))
    unused = cast("Any", None)
    servers = EndpointServers(
        parts._servers, admission=unused, handles=unused, merged=parts, late=unused, extensions=unused
    )
    call = a_call("tools/call", name=name)
    called = servers.called(call.exchange, Era.LEGACY, call.params)
    assert (called.server, called.name, called.is_repeatable) == found
