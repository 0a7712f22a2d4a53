"""Everything that costs is counted, opening sessions included; nobody uses up what belongs to others."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from gateway.config.policy import RateSettings
from tests.requirements import requirement
from tests.support.credentials import API_KEYS, KEYS, bearer
from tests.support.gateway_process import DEMO, RunningGateway, running_gateway, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import Legacy, Modern

pytestmark = requirement("wall.bystander", "pol.limits")

SERVERS = {"main": server(DEMO, shared=True)}
WHAT = ("ping", "initialize", "discover", "list", "notification", "stream", "delete", "answer")
PROXIES = {"proxies": {"networks": ["127.0.0.0/8", "10.0.0.0/8"]}}


def come_from(address: str, **more: str) -> dict[str, str]:
    return {"X-Forwarded-For": address, **more}


def options(**policy: Any) -> dict[str, Any]:
    return {"anonymous": True, "auth": PROXIES, "policy": policy}


def refused(response: httpx.Response) -> bool:
    if response.status_code == 429:
        assert int(response.headers["retry-after"]) >= 1 and response.json()["error"]["code"] == -32018
    return response.status_code == 429


@pytest.fixture(scope="module")
def rated() -> Iterator[RunningGateway]:
    with running_gateway(SERVERS, options=options(principal_rate={"per_s": 0.01, "burst": 12})) as gateway:
        yield gateway


@pytest.mark.parametrize("what", WHAT)
def test_whatever_is_sent_counts(what: str, rated: RunningGateway, http: httpx.Client) -> None:
    came = come_from(f"192.0.2.{WHAT.index(what)}")  # nobody came from there before
    legacy = Legacy(rated.url, http, headers=came).open()
    modern = Modern(rated.url, http, headers=came)
    unknown = {**legacy.request_headers(), "Mcp-Session-Id": "x" * 30}
    send: Callable[[], httpx.Response] = {
        "ping": lambda: legacy.call("ping"),
        "initialize": lambda: Legacy(rated.url, http, headers=came).initialize(),
        "discover": lambda: modern.send("server/discover"),
        "list": lambda: modern.send("tools/list"),
        "notification": lambda: legacy.notify("notifications/roots/list_changed"),
        "answer": lambda: legacy.post({"jsonrpc": "2.0", "id": 1, "result": {}}),
        "delete": lambda: http.delete(rated.url, headers=unknown),
        "stream": lambda: http.get(rated.url, headers={**unknown, "Accept": "text/event-stream"}),
    }[what]
    answers = [refused(send()) for _ in range(13)]
    assert answers == sorted(answers) and answers.count(True) == 3, answers
    other = Legacy(rated.url, http, headers=come_from(f"198.51.100.{WHAT.index(what)}")).open()
    assert other.call("ping").status_code == 200, "nobody else pays"


def test_opening_counts_by_address_and_by_principal(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.policy.rate_limits.OPENING_RATE", RateSettings(per_s=0.01, burst=3))
    with in_process_gateway(SERVERS, options=options()) as gateway:

        def opened(address: str) -> list[int]:
            came = come_from(address)
            answers = [
                Legacy(gateway.url, http, headers=came).initialize(),
                Modern(gateway.url, http, headers=came).tool("count"),
                Legacy(gateway.url, http, headers=came).initialize(),
                Modern(gateway.url, http, headers=came).tool("count"),
            ]
            return [answer.status_code for answer in answers]

        assert opened("192.0.2.1") == [200, 200, 200, 429]
        # What stands before the last address is the client's own invention.
        assert opened("192.0.2.7, 192.0.2.1") == [429] * 4
        assert opened("192.0.2.2, 10.1.2.3") == [200, 200, 200, 429]
        assert opened("2001:db8::1") == [200, 200, 200, 429] and opened("2001:db8::ffff:1") == [429] * 4
        assert Modern(gateway.url, http, headers=come_from("192.0.2.1")).send("tools/list").status_code == 200
    with in_process_gateway(SERVERS, options={"api_keys": API_KEYS}) as gateway:
        alice, bob = (Legacy(gateway.url, http, headers=bearer(KEYS[name])) for name in ("alice", "bob"))
        statuses = []
        for _ in range(4):
            alice.session = ""  # else it takes up the one it has
            statuses.append(alice.initialize().status_code)
        assert statuses == [200, 200, 200, 429]
        assert bob.initialize().status_code == 200, "nobody else pays"


def test_anonymous_sessions_are_bounded_by_address(http: httpx.Client) -> None:
    with running_gateway(SERVERS, options=options(principal_sessions=2)) as gateway:

        def opened(address: str) -> list[int]:
            return [Legacy(gateway.url, http, headers=come_from(address)).initialize().status_code for _ in range(3)]

        assert opened("192.0.2.1") == [200, 200, 429] and opened("192.0.2.2") == [200, 200, 429]
        refused = Legacy(gateway.url, http, headers=come_from("192.0.2.1")).initialize()
        assert "The anonymous clients of your address have 2 sessions" in refused.text
