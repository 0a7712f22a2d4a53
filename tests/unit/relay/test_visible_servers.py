"""Which servers of an endpoint a session sees."""

from types import SimpleNamespace
from typing import Any, cast

from gateway.config.policy import PolicySettings
from gateway.policy.decisions import Policy, ServerPolicy
from gateway.relay.visible_servers import VisibleServers
from session_store import Context

SANDBOXED, DIRECT = Context(trust="sandboxed"), Context(trust="direct")


def visible(**servers: ServerPolicy) -> VisibleServers:
    upstreams = cast("Any", [SimpleNamespace(name=name) for name in servers])
    return VisibleServers(upstreams, Policy(PolicySettings(), servers))


def test_every_session_sees_servers_without_rules() -> None:
    servers = visible(a=ServerPolicy(), b=ServerPolicy())
    assert servers.to(SANDBOXED) is servers.all and [*servers.all] == ["a", "b"]


def test_a_server_for_direct_trust_is_not_there_for_others() -> None:
    servers = visible(a=ServerPolicy(), b=ServerPolicy(direct_only=True))
    assert [*servers.to(SANDBOXED)] == ["a"] and [*servers.to(DIRECT)] == ["a", "b"]


def test_only_one_server_is_the_only_one() -> None:
    assert visible(a=ServerPolicy(), b=ServerPolicy()).only is None
    only = visible(a=ServerPolicy(direct_only=True))
    assert only.only is only.all["a"] and not only.to(SANDBOXED)
