"""A modern client that listens for changes of lists of tools."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

import httpx

from tests.support.mcp_clients import events, modern_body, modern_headers

SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
WANTED: Final = {"notifications": {"toolsListChanged": True}}


class Stream:
    """An acknowledged `subscriptions/listen`, and what has come of it. `session` is the token of its session."""

    def __init__(self, response: httpx.Response, began: float) -> None:
        self.session = response.headers["mcp-gateway-session"]
        self._chunks = response.iter_text()
        self._text = ""
        self.first = self.until(1)[0]
        self.acknowledged_s = time.monotonic() - began
        assert self.first["method"] == "notifications/subscriptions/acknowledged"

    @property
    def seen(self) -> list[Any]:
        return [json.loads(data) for _, data in events(self._text[: self._text.rfind("\n\n") + 2]) if data]

    def until(self, count: int) -> list[Any]:
        """The first messages, so many."""
        while len(self.seen) < count:
            self._text += next(self._chunks)
        return self.seen

    def rest(self) -> list[Any]:
        """All messages, once the gateway has ended the stream."""
        self._text += "".join(self._chunks)
        return self.seen


@contextmanager
def listening(
    url: str, request_id: object = "mine", *, wanted: Any = WANTED, headers: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Stream]:
    body = modern_body("subscriptions/listen", wanted, request_id=request_id)
    began = time.monotonic()
    with (
        httpx.Client(timeout=20) as own,
        own.stream("POST", url, json=body, headers={**modern_headers(body), **headers}) as response,
    ):
        yield Stream(response, began)
