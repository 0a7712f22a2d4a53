"""How an HTTP link tells requests of the two eras apart, and which failures it reports."""

from typing import Any

import httpx2
import msgspec
import pytest

from tests.requirements import requirement
from transports.mirrored_headers import decode_value
from transports.testing import RecordedEvents
from transports.upstream.streamable_http import HttpUpstream, modern_version
from transports.upstream_port import ConnectOptions

VERSION = "io.modelcontextprotocol/protocolVersion"


def test_a_modern_request_names_its_version() -> None:
    meta = msgspec.json.encode({VERSION: "2026-07-28", "note": 1})
    assert modern_version({"_meta": msgspec.Raw(meta)}) == "2026-07-28"


@pytest.mark.parametrize(
    "meta",
    [b'{"note": "' + VERSION.encode() + b'"}', b'["' + VERSION.encode() + b'"]', b'{"' + VERSION.encode() + b'": 7}'],
)
def test_the_same_text_elsewhere_in_meta_makes_no_modern_request(meta: bytes) -> None:
    assert modern_version({"_meta": msgspec.Raw(meta)}) == ""


def test_a_request_without_meta_is_legacy() -> None:
    assert modern_version({}) == ""


def answers_404(seen: list[httpx2.Request]) -> HttpUpstream:
    """A server that answers every POST with 404 and offers no stream."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST":
            return httpx2.Response(405)
        seen.append(request)
        return httpx2.Response(404)

    upstream = HttpUpstream(name="remote", url="http://remote/mcp", headers={}, max_event_bytes=1_000)
    upstream._client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    return upstream


def request(meta: dict[str, Any], params: dict[str, Any], method: str = "tools/call") -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": 7, "method": method, "params": params | {"_meta": meta}})


@pytest.mark.anyio
@pytest.mark.parametrize(("meta", "forgotten"), [({}, [7]), ({VERSION: "2026-07-28"}, [])])
async def test_only_a_request_with_a_session_id_finds_that_the_session_is_forgotten(
    meta: dict[str, Any], forgotten: list[int]
) -> None:
    seen: list[httpx2.Request] = []
    upstream, events = answers_404(seen), RecordedEvents()
    link = await upstream.connect(ConnectOptions(resume='["2025-11-25","s-1"]'), events)
    link.send(request(meta, {"name": "count"}))
    await events.until(lambda: bool(events.failed))
    assert events.failed == [7] and events.unsent_ids == forgotten
    assert ("mcp-session-id" in seen[0].headers) == bool(forgotten)
    await link.close()
    await upstream.close()


@pytest.mark.anyio
async def test_a_request_whose_headers_cannot_be_made_is_refused() -> None:
    seen: list[httpx2.Request] = []
    upstream, events = answers_404(seen), RecordedEvents()

    def schemas() -> dict[str, Any]:
        raise RuntimeError("no schemas")

    link = await upstream.connect(ConnectOptions(schemas=schemas), events)
    link.send(request({VERSION: "2026-07-28"}, {"name": "count"}))
    await events.until(lambda: bool(events.failed))
    assert events.failed == [7] and not events.unsent_ids and not seen
    await link.close()
    await upstream.close()


@requirement("ext.relay")
@pytest.mark.anyio
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_a_modern_request_about_a_task_names_the_task_in_a_header(method: str) -> None:
    seen: list[httpx2.Request] = []
    upstream, events = answers_404(seen), RecordedEvents()
    link = await upstream.connect(ConnectOptions(), events)
    link.send(request({VERSION: "2026-07-28"}, {"taskId": "täsk"}, method))
    await events.until(lambda: bool(events.failed))
    assert seen[0].headers["mcp-method"] == method and decode_value(seen[0].headers["mcp-name"]) == "täsk"
    await link.close()
    await upstream.close()
