"""Send operators' requests to a running gateway through its REST interface. The gateway answers for all replicas."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, cast
from urllib.parse import quote

import httpx2
import msgspec

from gateway.admin.query_types import SHORTEST_PREFIX, Ambiguous, NoSuch, OperatorError, SessionQuery, TooShort
from gateway.admin.verbs import VERBS, Operators, Verb
from gateway.config.addresses import is_of_this_machine

_MOST_CANDIDATES: Final = 10
_TIMEOUT_S: Final = 30.0
_LONG_TIMEOUT_S: Final = 600.0
"""The timeout for ending many sessions: the gateway waits for the end of each session's processes."""


class RestClient:
    """Send operators' requests to a gateway over REST. Implements `admin.verbs.Operators`: the methods are derived from
    the table of verbs. A verb's argument `by`, the name of the operator, is not sent, because the gateway knows the
    operator by the key."""

    sees_calls = True

    def __init__(self, url: str, key: str) -> None:
        self._url = url.removesuffix("/").removesuffix("/mcp").removesuffix("/admin")
        if not key:
            raise OperatorError(
                "MCP_GATEWAY_ADMIN_KEY is not set: set it to an operator's key of that gateway (gateway.admin.keys). "
                "Only a gateway that you have started at a terminal of this machine, on loopback, with each server in "
                "a sandbox, needs none"
            )
        self._self = cast("Operators", self)
        self._client = httpx2.AsyncClient(
            base_url=f"{self._url}/admin/api/",
            headers={"Authorization": f"Bearer {key}"},
            timeout=_TIMEOUT_S,
            trust_env=not is_of_this_machine(self._url),  # no proxy gets the key of this machine
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Operators]:
        """Keep the HTTP client open for the time of the block. Yield the verbs."""
        async with self._client:
            yield self._self

    async def follow(self, session: str = "") -> AsyncIterator[dict[str, Any]]:
        params = {"session": session} if session else {}
        accept = {"Accept": "text/event-stream"}
        try:
            async with self._client.stream("GET", "events", params=params, headers=accept, timeout=None) as response:
                if response.status_code != 200:
                    await response.aread()
                self._check(response)
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line[6:])
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None

    async def ask(self, verb: Verb, arguments: Mapping[str, Any], body: bytes | None = None) -> Any:
        """Send the request of a verb with these arguments, by name. `body`: the request's body as JSON, for verbs that
        have one. Return the decoded answer. Raises `OperatorError` if the gateway does not answer, or refuses the
        request."""
        params: dict[str, str] = {}
        for one in verb.takes:
            params |= one.written(arguments.get(one.at))
        named = {name: await self._named(name, params.pop(name, "")) for name in re.findall(r"{(\w+)}", verb.path)}
        timeout_s = _LONG_TIMEOUT_S if verb.is_exact else _TIMEOUT_S  # it is about many sessions
        try:
            response = await self._client.request(
                verb.method, verb.path[1:].format(**named), params=params, content=body, timeout=timeout_s
            )
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None
        self._check(response)
        answer = msgspec.json.decode(response.content, type=verb.type)
        return answer[verb.answers] if verb.answers else answer

    async def _named(self, what: str, prefix: str) -> str:
        """Return `prefix`, an id or name or the beginning of one, quoted for a URL's path; the gateway completes it.
        `what` is the kind of thing that it names, such as `session`. For an empty `prefix` of a session, return the id
        of the only live session. Raises `OperatorError` if no session is live or several are, or if the prefix has too
        few characters."""
        if what == "session" and not prefix:
            found = (await self._self.sessions(SessionQuery(limit=_MOST_CANDIDATES + 1))).sessions
            if not found:
                raise NoSuch("no session is live")
            if len(found) > 1:
                raise Ambiguous("more than one session is live: give more characters of the id", tuple(found))
            prefix = found[0].session
        if what in ("session", "task") and len(prefix) < SHORTEST_PREFIX:
            raise TooShort(what)
        return quote(prefix, safe="")

    def _unreachable(self, error: Exception) -> OperatorError:
        return OperatorError(f"{self._url} cannot be reached: {error or type(error).__name__}")

    def _check(self, response: httpx2.Response) -> None:
        if response.status_code == 200:
            return
        if response.status_code == 401:
            raise OperatorError("MCP_GATEWAY_ADMIN_KEY is not a key of that gateway's gateway.admin.keys")
        kind = NoSuch if response.status_code == 404 else OperatorError
        try:
            detail = response.json()["detail"]
        except (ValueError, LookupError, TypeError):
            kind = OperatorError
            check = "check that gateway.admin.keys is set there; if gateway.admin.listen is set, give that address"
            detail = f"{self._url} answers {response.status_code}: {check}"
        raise kind(str(detail))


def _method(verb: Verb) -> Callable[..., Awaitable[Any]]:
    async def ask(client: RestClient, *given: Any, **named: Any) -> Any:
        if verb.sends is not None:
            return await client.ask(verb, {}, msgspec.json.encode(given[0]))
        arguments = dict(zip((one.at for one in verb.takes), given, strict=False))  # the operator's name is left out
        return await client.ask(verb, arguments | named)

    return ask


for _verb in VERBS:
    setattr(RestClient, _verb.name, _method(_verb))
