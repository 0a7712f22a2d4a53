"""Parts of the room: what a server answers, its conversations, and the sandbox of its processes."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import msgspec

from gateway.calls.server_start_failures import FirstAnswerTimeout
from gateway.config.settings import GatewaySettings
from gateway.config.upstreams import UpstreamSettings
from gateway.context.resources_for_links import LinkResources
from gateway.context.session_folders import SessionFolders
from gateway.policy.memory_admission import ServerMemory
from gateway.sandbox.sandboxes_by_trust import sandboxes_of
from gateway.sandbox.shared_package_fetches import PackageInUse
from gateway.upstreams.process_sandbox import SandboxedResources
from transports.era import Era
from transports.jsonrpc import Message
from transports.upstream.walls.wall_specification import Walls
from transports.upstream_port import ConnectOptions

NO_METHOD = b'{"code":-32601,"message":"no such method"}'


def answered(result: bytes) -> Message:
    return Message(jsonrpc="2.0", id=1, result=msgspec.Raw(result))


def refused(error: bytes = NO_METHOD) -> Message:
    return Message(jsonrpc="2.0", id=1, error=msgspec.Raw(error))


def returning(found: object) -> Any:
    """An asynchronous function that returns this."""

    async def function(*_: object) -> object:
        return found

    return function


class Server:
    """What a server answers, and what happens in its conversations; stands for `SharedConversations`.

    `discover` and `tools` are results, errors, exceptions, or None: no such method. `ready` (of the modern era),
    `legacy` and `trial` are what these conversations raise when they open, or the server's answer to the handshake.
    """

    def __init__(
        self,
        *,
        discover: Any = None,
        tools: Any = b'{"tools":[{"name":"t"}]}',
        ready: Any = None,
        legacy: Any = None,
        trial: Any = None,
        is_busy: bool = False,
    ) -> None:
        self.discover = discover
        self.tools = tools
        self.opening = {Era.MODERN: ready, Era.LEGACY: legacy, None: trial}
        self.log: list[str] = []
        self.gate = asyncio.Event()
        if not is_busy:
            self.gate.set()

    def of(self, era: Era) -> "Talk":
        return Talk(self, era)

    def trial(self) -> "Talk":
        return Talk(self, None)

    async def discard(self, era: Era) -> None:
        self.log.append(f"discard {era}")


class Talk:
    """One conversation. Without an era it is a trial of the handshake."""

    name = "demo"

    def __init__(self, server: Server, era: Era | None) -> None:
        self.server = server
        self.kind = era
        self.era = era or Era.LEGACY
        self.output_tail = ["it is no use"]
        self.links = SimpleNamespace(first_answer=FirstAnswerTimeout(5.0))
        self.initialize_result = b'{"protocolVersion":"2025-11-25","capabilities":{}}'

    async def ready(self) -> None:
        self.server.log.append("trial" if self.kind is None else f"ready {self.kind}")
        await self.server.gate.wait()
        opening = self.server.opening[self.kind]
        if isinstance(opening, Exception):
            raise opening
        self.initialize_result = opening or self.initialize_result

    async def ask(self, method: str, _: Any) -> Message:
        answer = self.server.discover if method == "server/discover" else self.server.tools
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Message):
            return answer
        return refused() if answer is None else answered(answer)

    async def close(self, reason: str = "") -> None:
        self.server.log.append("close")


class Enclosed:
    """A server in a sandbox whose links have ended as `ended` says."""

    def __init__(
        self,
        folders: SessionFolders,
        sandbox: Any,
        name: str = "notes",
        *,
        is_fetched: bool = False,
        limit_mb: int = 0,
    ) -> None:
        self.ended: list[str] = []
        package = PackageInUse(
            argv=("/usr/bin/env", "x"),
            env={"A": "package", "B": "package"},
            path=("/usr/games",),
            code=("/usr/share/doc",),
            release=lambda: self.ended.append("released"),
        )
        settings = UpstreamSettings.model_validate({"command": "cat", "sandbox": sandbox})
        sandboxes = sandboxes_of(name, settings, GatewaySettings())
        self.began: list[int | None] = []
        self.memory = ServerMemory(limit_mb, Counter())
        fetch = returning(package if is_fetched else None)
        self.sandboxed = SandboxedResources(name, sandboxes, folders, fetch, self.memory)

    async def link(self, session: str = "s1", trust: str = "direct", **env: str) -> LinkResources:
        options = ConnectOptions(env=env, began=self.began.append)
        given = LinkResources(given=options, close=lambda: self.ended.append("closed"))
        return await self.sandboxed.of_session(given, session, self.sandboxed.by_trust.sandbox(trust))


def walls_of(link: LinkResources) -> Walls:
    assert link.given.walls is not None
    return link.given.walls
