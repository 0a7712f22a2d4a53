"""Which of the servers of an endpoint get a method that MCP does not define."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import msgspec
import pytest

from gateway.bridge.modern_server_subscriptions import declaration_of
from gateway.calls.live_session import LiveSession
from gateway.config.upstreams import MethodSettings
from gateway.errors import unknown_method
from gateway.protocol.client_capabilities import ClientDeclaration
from gateway.protocol.extensions import Declared
from gateway.protocol.handshake import capabilities_json
from gateway.relay.extension_methods import ExtensionRelay
from gateway.relay.late_servers import Asker
from gateway.upstreams.server_facts import ServerFacts
from session_store import ClientFacts, Context
from tests.requirements import requirement
from tests.support.paged_server import OneServer
from tests.unit.relay.parts import a_live
from transports.era import LEGACY, MODERN, Era
from transports.inbound_port import Refused
from transports.jsonrpc import METHOD_NOT_FOUND, Object, encode
from transports.upstream_port import UpstreamUnavailable

pytestmark = requirement("ext.relay")

ANYONE = Context(trust="direct")
ACME: Any = {"extensions": {"com.acme/a": {}}}
OTHER: Any = {"extensions": {"org.other/b": {}}}


class Server(OneServer):
    """A server with one conversation, which is open if it `is_known`. `capabilities` are declared to the gateway, those
    in `initialize_result` to the session."""

    is_known = is_starting = is_awaited = is_down = False
    initialize_result: bytes | None = None

    def __init__(self, name: str, capabilities: Any = None, *, era: Era = LEGACY, methods: Any = None) -> None:
        self.name = name
        self.era = era
        self.settings = SimpleNamespace(methods={k: MethodSettings(**v) for k, v in (methods or {}).items()})
        self._facts = ServerFacts(initialize=encode({"capabilities": capabilities or {}}))
        self.opened_with: list[ClientDeclaration | None] = []
        self.sent: list[tuple[str, Any]] = []

    @property
    def discovery(self) -> bytes | None:  # type: ignore[override]  # a fake
        return None if self.is_starting else self._facts.discovery

    @property
    def extensions(self) -> Declared:  # type: ignore[override]  # a fake
        return self._facts.declared

    @property
    def declared(self) -> Declared:
        return Declared.of(capabilities_json(self.initialize_result))

    async def facts(self) -> ServerFacts:
        if self.is_starting:
            self.is_awaited = True
            await asyncio.Event().wait()
        return self._facts

    def any_conversation(self, live: LiveSession) -> "Server | None":  # type: ignore[override]  # a fake
        return self if self.is_known else None

    def conversation(self, live: LiveSession, era: Era, correlation: str, caller: ClientDeclaration | None) -> "Server":
        self.opened_with.append(caller)
        return self

    async def ready(self) -> None:
        if self.is_down:
            raise UpstreamUnavailable("it is down")

    def notify(self, method: str, params: bytes | None) -> None:
        self.sent.append((method, None if params is None else msgspec.json.decode(params)))


class Admits:
    """Hides the methods of one server."""

    def __init__(self, hidden: str) -> None:
        self._hidden = hidden

    def check_method(self, server: str, method: str, era: str, session: object, context: Context) -> None:
        if server == self._hidden:
            raise unknown_method(method, era)


def relay(*servers: Server, hidden: str = "") -> ExtensionRelay:
    visible = SimpleNamespace(to=lambda context: {server.name: server for server in servers})
    return ExtensionRelay(cast("Any", visible), cast("Any", Admits(hidden)), wait_s=0.05)


def asker(capabilities: Any = None, era: Era = MODERN) -> Asker:
    return Asker(None, era, ClientDeclaration(b"{}", encode(capabilities or {})), "c")


async def servers_for(method: str, *servers: Server, declared: Any = None, era: Era = MODERN) -> list[str]:
    return [each.name for each in await relay(*servers).servers_for(method, ANYONE, asker(declared, era))]


async def test_a_method_goes_to_the_server_that_has_declared_its_extension() -> None:
    servers = Server("acme", ACME), Server("other", OTHER)
    assert await servers_for("com.acme/a/do", *servers) == ["acme"]
    assert await servers_for("notifications/org.other/changed", *servers) == ["other"]
    assert await servers_for("b/do", *servers) == ["other"]
    both = await servers_for("com.acme/a/do", Server("one", ACME), Server("two", ACME), Server("three"))
    assert both == ["one", "two"], "the first gets requests, and all get notifications"
    assert await servers_for("com.acme/a/do", Server("one"), declared=ACME) == ["one"], (
        "it gets what its client declares"
    )
    with pytest.raises(Refused):
        await servers_for("com.acme/a/do", Server("one"), Server("two"), declared=ACME)


async def test_servers_that_start_hold_up_no_message_for_another_and_are_waited_for_together() -> None:
    starting = [Server(name, OTHER) for name in ("one", "two", "three")]
    for each in starting:
        each.is_starting = True
    assert await servers_for("com.acme/a/do", *starting, Server("acme", ACME)) == ["acme"]
    assert not any(each.is_awaited for each in starting)
    asked = asyncio.create_task(servers_for("b/do", *starting, Server("plain")))
    for _ in range(2):
        await asyncio.sleep(0)
    assert all(each.is_awaited for each in starting) and not asked.done()
    with pytest.raises(Refused) as refused:
        await asked
    assert refused.value.code == METHOD_NOT_FOUND


async def test_the_configuration_counts_before_declarations() -> None:
    own, denied = Server("own", methods={"com.acme/*": {}}), Server("no", methods={"com.acme/*": {"allowed": False}})
    for method in ("com.acme/a/do", "notifications/com.acme/x"):
        assert await servers_for(method, Server("acme", ACME), own, denied) == ["own"]


async def test_a_method_with_any_name_goes_to_the_only_server_that_has_declared_something_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await servers_for("strange", Server("acme", ACME), Server("plain")) == ["acme"]
    with pytest.raises(Refused, match=r"Several servers may have it \(acme, other\)"):
        await servers_for("strange", Server("acme", ACME), Server("other", OTHER))
    assert "'strange'" in caplog.text and "acme, other" in caplog.text and "mcpServers.SERVER.methods" in caplog.text


@pytest.mark.parametrize(("era", "status"), [(LEGACY, 200), (MODERN, 404)])
async def test_what_nobody_has_declared_reaches_no_server(era: Era, status: int) -> None:
    for servers in ([Server("one")], [Server("one"), Server("two")], []):
        with pytest.raises(Refused) as refused:
            await servers_for("com.acme/a/do", *servers, era=era)
        assert (refused.value.status, refused.value.code) == (status, METHOD_NOT_FOUND)


async def test_what_a_server_has_declared_to_the_session_counts() -> None:
    server = Server("one")
    server.is_known, server.initialize_result = True, encode({"capabilities": ACME})
    found = await relay(server, Server("two")).servers_for("com.acme/a/do", ANYONE, Asker(a_live(), LEGACY, None, "c"))
    assert [each.name for each in found] == ["one"]


def notice(
    era: Era, caller: ClientDeclaration | None = None, method: str = "notifications/com.acme/changed", **params: Any
) -> tuple[Asker, Context, str, Object, Object]:
    hello = encode({"capabilities": ACME, "clientInfo": {"name": "c", "version": "1"}})
    client = ClientFacts(name="c", protocol_version="2025-11-25", initialize_params=hello)
    live, encoded = a_live(client=client), {key: msgspec.Raw(encode(value)) for key, value in params.items()}
    meta = {"own": msgspec.Raw(b"1"), "io.modelcontextprotocol/x": msgspec.Raw(b"2")}
    return Asker(live, era, caller, "c"), ANYONE, method, encoded, meta


async def test_a_notification_gets_what_the_era_of_its_server_needs() -> None:
    caller = ClientDeclaration(b'{"name":"m"}', encode(ACME))
    legacy, modern = Server("one", ACME), Server("two", ACME, era=MODERN)
    await relay(legacy, modern).notify(*notice(MODERN, caller, k=1.5))
    assert legacy.sent == [("notifications/com.acme/changed", {"k": 1.5, "_meta": {"own": 1}})]
    ((_, body),) = modern.sent
    assert body["_meta"]["io.modelcontextprotocol/clientInfo"] == {"name": "m"} and body["_meta"]["own"] == 1
    assert legacy.opened_with == [caller]

    again = Server("one", ACME, era=MODERN)
    sent = notice(LEGACY)
    await relay(again).notify(*sent)
    live = sent[0].live
    assert live is not None
    facts = {key: msgspec.json.decode(raw) for key, raw in declaration_of(live).meta("").items()}
    assert facts.items() <= again.sent[0][1]["_meta"].items()

    known = Server("one", ACME)
    known.is_known = True
    await relay(known).notify(*notice(MODERN, ClientDeclaration(b"{}", b"{}")))
    assert known.opened_with == [] and len(known.sent) == 1, "without the facts of its client, it goes with the calls"


async def test_a_notification_that_cannot_be_passed_on_is_refused() -> None:
    down, well = Server("one", ACME), Server("two", ACME)
    down.is_down = True
    with pytest.raises(Refused, match="it is down") as refused:
        await relay(down).notify(*notice(LEGACY))
    assert refused.value.status == 503
    with pytest.raises(Refused, match="not found"):
        await relay(well, hidden="two").notify(*notice(LEGACY))
    assert well.sent == []


async def test_the_declarations_of_a_server_are_read_once() -> None:
    many = Server("one", {"extensions": {f"com.a{number}/x": {} for number in range(10_000)}})
    asking = relay(many, Server("two"))
    with patch.object(Declared, "of", side_effect=Declared.of) as reading:
        for _ in range(3):
            assert [each.name for each in await asking.servers_for("com.a7/do", ANYONE, asker(ACME))] == ["one"]
    assert reading.call_count == 2, "one for each server, and the client's are not asked for"


@pytest.mark.parametrize("method", ["", "Tools/Call", "sampling/createMessage", "tools/call\n"])
async def test_neither_a_declaration_nor_the_configuration_sends_a_look_alike_to_a_server(method: str) -> None:
    server = Server("one", ACME, methods={"*": {}, method: {}})
    request: Any = SimpleNamespace(method="notifications/com.acme/changed", era=LEGACY)
    for sending in (
        servers_for(method, server, declared=ACME),
        relay(server).notify(*notice(LEGACY, method=method)),
        relay(server).server_for(request),
    ):
        with pytest.raises(Refused, match="not found"):
            await sending
    assert server.sent == []
