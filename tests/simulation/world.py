"""Gateways, a store and clients on one simulated network, in one process and one event loop."""

import asyncio
import contextlib
import logging
from typing import Any, Final

import httpx

from gateway import Gateway, create_app
from gateway.config.configuration_errors import ConfigurationError
from gateway.config.load import Origins
from gateway.config.settings import Settings
from gateway.serving.drain import HAND_OVER_S
from session_store import KeyRing
from tests.cluster.load import Load
from tests.proof.histories import Event
from tests.simulation.network import SimulatedLoop
from tests.simulation.servers import Server
from tests.simulation.store import HOST as STORE
from tests.simulation.store import PORT, Store
from tests.support.gateway_process import UNLIMITED

RING: Final = KeyRing(["k" * 40])
REPLICAS: Final = 3
SESSIONS: Final = 3
HUNG_AFTER_S: Final = 25.0
"""With its clock set by an hour, or while it can ask nobody, a replica waits for an outage and two leases: 22 s."""

EVERY_S: Final = 0.35
"""Seconds between the beginnings of two calls of a session."""

_AHEAD_S: Final = 0.75
"""What the clocks of two replicas are before and after that of the third."""

_CLIENTS: Final = "clients"
_PEERS: Final = 7000


class Replica:
    """A gateway on a host of its own."""

    def __init__(self, world: "World", number: int) -> None:
        self.host = f"10.0.0.{number}"
        self.requests: dict[asyncio.Future[httpx.Response], None] = {}
        self.is_ready = False
        self._world = world
        self._stopped = asyncio.Event()
        loop = world.loop
        options: dict[str, Any] = {
            "store": f"redis://{STORE}:{PORT}/0",
            "advertise": f"{self.host}:{_PEERS}",
            "anonymous": True,
            "allowed_hosts": ["gateways"],
        }
        self._options = options
        told = world.history.append
        servers = {"echo": Server(loop, "echo", told), "state": Server(loop, "bump", told)}
        settings = self._configuration()
        self.gateway = Gateway(settings, servers=servers, ring=RING)
        self.app: Any = create_app(settings, gateway=self.gateway)
        loop.at_host(self.host, 0.0, self._start)

    @property
    def name(self) -> str:
        return self.gateway.replica

    def _start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        async with self.gateway.running():
            self.is_ready = True
            await self._stopped.wait()
            await self.gateway.parts.drain.drain()
            with contextlib.suppress(TimeoutError):  # as the HTTP server, which closes connections then
                async with asyncio.timeout(HAND_OVER_S):
                    while self.requests:  # noqa: ASYNC110  # there is no event for it
                        await asyncio.sleep(0.05)
        self._world.network.kill(self.host)
        self._world.loop.kill(self.host)
        self._break()

    def reload(self) -> None:
        """Load the configuration that the world has now."""
        self._world.loop.at_host(self.host, 0.0, lambda: asyncio.ensure_future(self._reload()))

    async def _reload(self) -> None:
        with contextlib.suppress(ConfigurationError):  # it drains
            await self.gateway.reload(self._configuration())

    def _configuration(self) -> Settings:
        """What a file says that the world has now."""
        document = {"gateway": self._options | {"policy": UNLIMITED | {"slow_s": self._world.slow_s}}}
        origins = Origins("gateway.json", document["gateway"], {}, {}, document=document)
        return Settings.model_validate(document, context={"origins": origins})

    def drain(self) -> None:
        """Stop as after SIGTERM: hand the sessions over, and end."""
        self.is_ready = False
        self._world.loop.at_host(self.host, 0.0, self._stopped.set)

    def kill(self) -> None:
        """End at once."""
        self.is_ready = False
        self._world.loop.kill(self.host)
        self._world.network.kill(self.host)
        self._break()

    def _break(self) -> None:
        for answer in [*self.requests]:
            self._world.loop.at_host(_CLIENTS, self._world.network.delay_s(self.host, _CLIENTS), _fail, answer)


def _fail(answer: "asyncio.Future[httpx.Response]") -> None:
    if not answer.done():
        answer.set_exception(httpx.ReadError("connection reset"))


class Balancer(httpx.AsyncBaseTransport):
    """Give each request to a random replica that is ready, without a connection of its own."""

    def __init__(self, world: "World") -> None:
        self._world = world

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        loop, network = self._world.loop, self._world.network
        ready = [replica for replica in self._world.replicas if replica.is_ready]
        replica = loop.random.choice(ready)
        answer: asyncio.Future[httpx.Response] = loop.create_future()
        replica.requests[answer] = None
        loop.at_host(replica.host, network.delay_s(_CLIENTS, replica.host), _Served, replica, request, answer)
        try:
            async with asyncio.timeout(HUNG_AFTER_S):
                return await answer
        except TimeoutError:
            raise httpx.ReadTimeout("no answer") from None
        finally:
            del replica.requests[answer]


class _Served:
    """One request, served by ASGI."""

    def __init__(self, replica: Replica, request: httpx.Request, answer: "asyncio.Future[httpx.Response]") -> None:
        self._world = replica._world
        self._answer = answer
        self._status, self._headers, self._body = 0, list[tuple[bytes, bytes]](), b""
        self._content: bytes | None = request.content
        self._gone = asyncio.Event()
        self._host = replica.host
        path = request.url.path
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": ("10.0.1.1", 1),
            "server": (replica.host, 8080),
        }
        self._task = asyncio.ensure_future(self._serve(replica.app, scope))

    async def _serve(self, app: Any, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
        except Exception:
            logging.getLogger(__name__).exception("a request failed")
            self._at_client(_fail, self._answer)

    async def _receive(self) -> Any:
        if self._content is None:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        content, self._content = self._content, None
        return {"type": "http.request", "body": content, "more_body": False}

    async def _send(self, event: Any) -> None:
        if event["type"] == "http.response.start":
            self._status, self._headers = event["status"], [*event["headers"]]
            return
        self._body += event.get("body", b"")
        if not event.get("more_body"):
            self._at_client(self._end)

    def _at_client(self, callback: Any, *args: Any) -> None:
        self._world.loop.at_host(_CLIENTS, self._world.network.delay_s(self._host, _CLIENTS), callback, *args)

    def _end(self) -> None:
        if not self._answer.done():
            self._answer.set_result(httpx.Response(self._status, headers=self._headers, content=self._body))


class World:
    """All of it. `history` has what happened, for the judge; `log` what the gateways have logged."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.network = loop.network
        self.history: list[Event] = []
        self.log: list[str] = []
        self.slow_s = 5.0
        """What the configurations of replicas differ in."""
        self.store = Store(loop, self.history.append)
        self.replicas = [Replica(self, number + 1) for number in range(REPLICAS)]
        self._numbers = REPLICAS
        loop.offsets = {self.replicas[0].host: _AHEAD_S, self.replicas[1].host: -_AHEAD_S}
        self.load = Load("http://gateways", SESSIONS, transport=Balancer(self), every_s=EVERY_S)
        self.load.history = self.history

    @classmethod
    async def begun(cls, loop: SimulatedLoop, quiet_s: float) -> "World":
        """Replicas that know each other, and sessions that are open."""
        world = cls(loop)
        logging.basicConfig(handlers=[_Log(world)], level=logging.WARNING, force=True)
        async with asyncio.timeout(60):
            while not all(replica.is_ready for replica in world.replicas):  # noqa: ASYNC110  # there is no event for it
                await asyncio.sleep(0.1)
        await asyncio.sleep(quiet_s)
        return world

    def replace(self) -> Replica:
        """Start one more replica."""
        self._numbers += 1
        self.replicas.append(replica := Replica(self, self._numbers))
        return replica


class _Log(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        loop = self._world.loop
        error = f"\n{logging.Formatter().formatException(record.exc_info)}" if record.exc_info else ""
        self._world.log.append(f"{loop.now:12.6f} {loop.host} {record.levelname} {record.getMessage()}{error}")
