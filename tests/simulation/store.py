"""A store on the simulated network: it speaks RESP, and executes commands and Lua scripts as Redis does."""

import asyncio
import copy
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import hiredis
import redis
from fakeredis import FakeServer
from fakeredis._helpers import SimpleError, SimpleString
from fakeredis._socket._fakesocket import FakeSocket

from tests.proof.histories import FORGOT, Event
from tests.simulation.network import SimulatedLoop

HOST: Final = "store"
PORT: Final = 6379
_RECORD: Final = re.compile(rb"mcp:\{([^}]+)\}:session")


class Store:
    """One master with a copy. While the copy lags, it has what was there when that began: a failover forgets the rest.

    `told` gets each claim of a session, as the store executes it.
    """

    def __init__(self, loop: SimulatedLoop, told: Callable[[Event], None]) -> None:
        self.loop = loop
        self.told = told
        self.server = FakeServer()
        self.server.subscribers = cast("Any", defaultdict(_Subscribers))  # in the order they came
        self.is_lagging = False
        self._copy: dict[int, Any] = {}
        loop.host = HOST
        loop.network.listen(lambda: _Connection(self), HOST, PORT)
        loop.host = ""

    def lag(self) -> None:
        """Copy no writes from now on."""
        self.is_lagging = True
        self._copy = {number: copy.deepcopy(db._dict) for number, db in self.server.dbs.items()}

    def catch_up(self) -> None:
        """Let the copy have everything again."""
        self.is_lagging = False

    def fail_over(self) -> None:
        """Promote the copy: connections end, and what it lacks is forgotten, scripts included."""
        network = self.loop.network
        for host in {end.other.host: None for end in network.ends.get(HOST, ())}:
            network.reset(HOST, host)
        for number, kept in self._copy.items():
            db = self.server.dbs[number]
            with self.server.lock:
                db.clear()
                db.update(kept)
        self.server.script_cache.clear()
        self.is_lagging = False
        self.told(Event(at=self.loop.now, what="failed over", how=FORGOT))


class _Subscribers(dict[Any, None]):
    def add(self, socket: Any) -> None:
        self[socket] = None

    def discard(self, socket: Any) -> None:
        self.pop(socket, None)

    remove = discard

    def __iter__(self) -> Iterator[Any]:
        return iter([*self.keys()])


class _Scripts:
    """A Lua runtime that compiles each script once, and collects garbage when it likes."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._compiled: dict[bytes, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def execute(self, source: bytes | str) -> Any:
        if isinstance(source, str):
            return None  # "collectgarbage()"
        if source not in self._compiled:
            self._compiled[source] = self._runtime.compile(source)
        return self._compiled[source]()


class _Socket(FakeSocket):
    """What `fakeredis` knows of a connection. Replies and messages of topics go to `reply`."""

    def __init__(self, store: Store, reply: Callable[[Any], None]) -> None:
        self._store = store
        self._reply = reply
        super().__init__(store.server, 0, client_class=redis.Redis, client_info={})

    def put_response(self, msg: Any) -> None:
        self._reply(msg)

    def _get_server_runtime(self, server: Any) -> Any:
        runtime = super()._get_server_runtime(server)
        if not isinstance(runtime, _Scripts):
            runtime = server._lua_runtime = _Scripts(runtime)
        return runtime

    def _lua_redis_pcall(self, lua_runtime: Any, expected_globals: set[Any], op: bytes, *args: Any) -> Any:
        try:
            return self._lua_redis_call(lua_runtime, expected_globals, op, *args)
        except SimpleError as error:
            return lua_runtime.table_from({b"err": error.value.encode()})  # as bytes, which scripts take for text

    def _decode_result(self, result: Any) -> Any:
        if isinstance(result, list):
            return [self._decode_result(each) for each in result]
        return result.value if isinstance(result, SimpleString) else result

    def _run_command(self, func: Any, sig: Any, args: list[Any], from_script: bool) -> Any:
        result = super()._run_command(func, sig, args, from_script)
        if sig.name == "hset" and (record := _RECORD.fullmatch(args[0])) is not None:
            fields = dict(zip(args[1::2], args[2::2], strict=True))
            if b"epoch" in fields and len(owner := fields.get(b"owner", b"").decode().strip('"')):
                told = Event(
                    at=self._store.loop.now,
                    what="claimed",
                    session=record[1].decode(),
                    by=owner,
                    value=int(fields[b"epoch"]),
                )
                self._store.told(told)
        return result


class _Connection(asyncio.Protocol):
    """Execute the commands that come, in order."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reader = hiredis.Reader()
        self._socket: _Socket | None = None
        self._transport: asyncio.Transport | None = None
        self._free_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._socket = _Socket(self._store, self._reply)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        loop = self._store.loop
        while (command := self._reader.gets()) is not False:
            # A command that waits for the copy blocks those behind it.
            self._free_at = max(self._free_at, loop.now)
            if command[0].upper() == b"WAIT" and self._store.is_lagging:
                self._free_at += int(command[2]) / 1000
            if self._free_at > loop.now:
                loop.call_at(self._free_at, self._execute, command)
            else:
                self._execute(command)

    def _execute(self, command: list[bytes]) -> None:
        if command[0].upper() == b"WAIT":
            self._reply(0 if self._store.is_lagging else 1)
        elif self._socket is not None:
            self._socket._process_command(command)

    def _reply(self, value: Any) -> None:
        if self._transport is not None:
            self._transport.write(_encoded(value))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._socket is not None:
            self._socket._cleanup(self._store.server)
            self._socket.close()
        self._socket = self._transport = None


def _encoded(value: Any) -> bytes:
    """A reply in RESP 2."""
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, SimpleError):
        return b"-%s\r\n" % " ".join(value.value.split()).encode()
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, list | tuple | set):
        return b"*%d\r\n%s" % (len(value), b"".join(map(_encoded, value)))
    text = value if isinstance(value, bytes) else str(value).encode()
    return b"$%d\r\n%s\r\n" % (len(text), text)
