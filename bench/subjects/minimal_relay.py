"""The limit for a gateway built like ours: one pipelined Redis GET, one parse, an id of our own, a pipe there and back.

It checks nothing, expires nothing and cleans up nothing.
"""

import asyncio
import os
import secrets
from typing import Any

import hiredis
import msgspec

from bench.subjects.bare import Receive, Send, read, respond


class Head(msgspec.Struct):
    id: int | str | None = None
    method: str = ""
    params: msgspec.Raw = msgspec.Raw(b"{}")


class Answer(msgspec.Struct):
    id: int
    result: msgspec.Raw = msgspec.Raw(b"null")


decode_head = msgspec.json.Decoder(Head).decode
decode_answer = msgspec.json.Decoder(Answer).decode
encode = msgspec.json.Encoder().encode


class Redis(asyncio.Protocol):
    """Commands of one loop iteration go out in one write; replies come in order."""

    def __init__(self) -> None:
        self.reader = hiredis.Reader()
        self.waiting: list[asyncio.Future[Any]] = []
        self.unsent: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.reader.feed(data)
        while (reply := self.reader.gets()) is not False:
            self.waiting.pop(0).set_result(reply)

    def run(self, *command: Any) -> "asyncio.Future[Any]":
        loop = asyncio.get_running_loop()
        if not self.unsent:
            loop.call_soon(self.flush)
        self.unsent.append(hiredis.pack_command(command))
        future = loop.create_future()
        self.waiting.append(future)
        return future

    def flush(self) -> None:
        self.transport.write(b"".join(self.unsent))
        self.unsent.clear()


class Child(asyncio.SubprocessProtocol):
    """One echo server; answers find their request by number."""

    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self.parts: list[bytes] = []
        self.number = 0

    def connection_made(self, transport: Any) -> None:
        self.stdin = transport.get_pipe_transport(0)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if b"\n" not in data:
            self.parts.append(data)
            return
        *lines, rest = b"".join((*self.parts, data)).split(b"\n")
        self.parts = [rest] if rest else []
        for line in lines:
            answer = decode_answer(line)
            self.waiting.pop(answer.id).set_result(answer.result)

    def ask(self, method: str, params: bytes) -> "asyncio.Future[msgspec.Raw]":
        self.number += 1
        future = asyncio.get_running_loop().create_future()
        self.waiting[self.number] = future
        self.stdin.write(
            b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":%s}\n' % (self.number, method.encode(), params)
        )
        return future


class Relay:
    def __init__(self) -> None:
        self.redis: Redis | None = None
        self.children: dict[bytes, Child] = {}

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if self.redis is None:
            loop = asyncio.get_running_loop()
            host, port = os.environ["BENCH_REDIS"].split(":")
            _, self.redis = await loop.create_connection(Redis, host, int(port))
        head = decode_head(await read(receive))
        if head.method == "initialize":
            await self.open(head, send)
            return
        session = next(value for name, value in scope["headers"] if name == b"mcp-session-id")
        assert await self.redis.run("GET", session)
        if head.id is None:
            await respond(send, b"{}")
            return
        result = await self.children[session].ask(head.method, bytes(head.params))
        await respond(send, b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (encode(head.id), bytes(result)))

    async def open(self, head: Head, send: Send) -> None:
        assert self.redis is not None
        session = secrets.token_urlsafe(18).encode()
        loop = asyncio.get_running_loop()
        _, child = await loop.subprocess_exec(Child, os.environ["BENCH_ECHO"])
        self.children[session] = child
        await self.redis.run("SET", session, b"x" * 600, "EX", "600")
        result = await child.ask("initialize", bytes(head.params))
        body = b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (encode(head.id), bytes(result))
        await respond(send, body, (b"mcp-session-id", session))


app = Relay()
