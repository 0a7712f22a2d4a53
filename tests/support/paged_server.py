"""A server with lists and resources, without a process, and the parts that serve several of them behind one URL."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Self, cast

import msgspec

from gateway.calls.client_request import Call
from gateway.calls.exchange import Exchange
from gateway.calls.received_lists import Lists
from gateway.config.policy import PolicySettings
from gateway.config.upstreams import UpstreamSettings
from gateway.observability.audit import Audit
from gateway.policy.access_policy import Policy
from gateway.policy.changed_tools import ChangedTools
from gateway.policy.tool_policy import ToolPolicy
from gateway.protocol.extensions import Declared
from gateway.protocol.input_schemas import Schemas
from gateway.protocol.merged_lists import Tools
from gateway.relay.late_servers import LateServers
from gateway.relay.merged_servers import MergedServers
from gateway.relay.policy_admission import Admission, VisibleServers
from gateway.upstreams.result_cache import ResultCache
from gateway.upstreams.server_facts import KnownFacts
from gateway.upstreams.server_lists import ServerLists
from session_store import Context
from session_store.memory import MemoryBackend
from tests.support.context import FACTS
from transports.era import Era
from transports.jsonrpc import Message, encode
from transports.reply_queue import ReplyQueue
from transports.upstream_port import UpstreamUnavailable

WAIT_S = 5.0
"""How long an answer waits for its servers, all of which answer at once: longer than this machine ever pauses."""


class OneServer:
    """A server, which is its own conversation. It is up, and takes what it gets."""

    name = "s"
    era = Era.LEGACY
    settings: Any = SimpleNamespace(kind="command", handles=False)
    known_capabilities: Mapping[str, Any] = {"tools": {"listChanged": True}}
    discovery: bytes | None = b"{}"
    extensions = Declared()
    is_failing = is_left_out = False
    hangs_for_s = 0.0

    def itself(self, *_: Any) -> Self:
        return self

    conversation = any_conversation = conversation_at_hand = sessionless = itself

    async def conversation_for(self, call: Call) -> Self:
        return self

    def era_now(self, client: Era) -> Era:
        return self.era

    async def era_for(self, *_: Any) -> Era:
        return self.era

    era_in = era_for

    async def capabilities(self) -> Any:
        return self.known_capabilities

    def permits(self, context: Context, uris: frozenset[str]) -> frozenset[str]:
        return uris

    def is_open_to(self, live: Any) -> bool:
        return True

    def in_background(self, work: Any) -> None:
        asyncio.get_running_loop().create_task(work)

    async def join(self, live: Any) -> None: ...
    async def ready(self) -> None: ...


class PagedServer(OneServer):
    """A server, and its conversation. `pages` has its results by method, and by cursor or URI; None: it is unavailable.
    `probed` are the tools that it has listed to the probe. `asked` has the requests that it got."""

    has_answered = True

    def __init__(
        self, name: str, pages: dict[tuple[str, str], Any] | None, probed: list[dict[str, Any]] | None = None
    ) -> None:
        self.name = name
        self.probed_tools = None if probed is None else Tools(probed)
        self.server_lists = ServerLists(
            name, timeout_s=5.0, probed=lambda: self.probed_tools, results=ResultCache(1 << 20)
        )
        self.known = KnownFacts()
        self.lists = Lists(lambda: None)
        self.known_lists = self.lists
        self.known_capabilities = {"resources": {}, "tools": {}}
        self.error = -32002
        self.asked: list[tuple[str, str]] = []
        self.answered = asyncio.Event()
        self._pages = pages

    @property
    def shared(self) -> list["PagedServer"]:
        return [self]

    async def ready(self) -> None:
        if self._pages is None:
            raise UpstreamUnavailable("it is away")

    async def ask(self, method: str, params: bytes) -> Message:
        assert self._pages is not None
        sent = msgspec.json.decode(params)
        key = method, sent.get("uri") or sent.get("cursor", "")
        self.asked.append(key)
        if key not in self._pages:
            error = {"code": self.error if method == "resources/read" else -32601, "message": "no"}
            return Message(jsonrpc="2.0", id=1, error=msgspec.Raw(encode(error)))
        return Message(jsonrpc="2.0", id=1, result=msgspec.Raw(encode(self._pages[key])))


class NamedSession:
    """A session, as far as finding owners needs one."""

    class session:
        id = "s1"


def ruled(**rules: Any) -> UpstreamSettings:
    """The settings of a server with these rules: policy reads nothing else of them."""
    assert rules.keys() <= UpstreamSettings.model_fields.keys()
    return UpstreamSettings.model_construct(**rules)


def admission_by(policies: dict[str, UpstreamSettings], audit: Audit | None = None) -> tuple[Policy, Admission]:
    settings = PolicySettings()
    policy, audit = Policy(settings, policies), audit or Audit(MemoryBackend().audit, lambda: 0.0)
    changed = ChangedTools(audit, settings, Counter(), lambda *_: None, lambda _: None)
    return policy, Admission(policy, ToolPolicy(policy, audit, Schemas(), settings, FACTS), audit, settings, changed)


def merged(*servers: PagedServer, policies: dict[str, UpstreamSettings] | None = None) -> MergedServers:
    """What serves all of them. `policies` are those of servers that have one."""
    policy, admission = admission_by({server.name: ruled() for server in servers} | (policies or {}))
    return MergedServers(
        VisibleServers(cast("Any", servers), policy), admission, LateServers(wait_s=WAIT_S, read_s=5.0)
    )


def a_call(method: str, *, live: Any = None, trust: str = "direct", **params: Any) -> Call:
    """A legacy client's request."""
    exchange = Exchange(method=method, client_id=1, live=live, replies=ReplyQueue(), context=Context(trust=trust))
    return Call(exchange, Era.LEGACY, {key: msgspec.Raw(encode(value)) for key, value in params.items()}, {}, "c")
