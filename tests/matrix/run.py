"""Each feature, as a client of the official SDK uses it at a server of the official SDK, in each cell: client era and
server era, stdio and HTTP."""

import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final

import anyio
import httpx2
import mcp_types as types
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tests.conformance.everything import served_over_http
from tests.conformance.servers import ONE_ERA
from tests.support.gateway_process import ROOT, server

CLIENTS: Final[dict[str, Any]] = {"legacy": "legacy", "modern": "2026-07-28"}
CELLS: Final = [(c, s, wire) for wire in ("stdio", "HTTP") for c in CLIENTS for s in ("legacy", "modern")]


class Heard:
    """What a client was asked and told."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.logged: list[str] = []
        self.told: list[str] = []
        self.news = anyio.Event()

    async def elicit(self, _: Any, params: Any) -> types.ElicitResult:
        self.asked.append(params.mode)
        content: Any = {"name": "Ada"} if params.mode == "form" else None
        return types.ElicitResult(action="accept", content=content)

    async def sample(self, _: Any, params: Any) -> types.CreateMessageResult:
        self.asked.append("sampling")
        text = types.TextContent(type="text", text="Amsterdam")
        return types.CreateMessageResult(role="assistant", content=text, model="test")

    async def roots(self, _: Any) -> types.ListRootsResult:
        self.asked.append("roots")
        return types.ListRootsResult(roots=[types.Root.model_validate({"uri": "file:///work"})])

    async def log(self, params: Any) -> None:
        self.logged.append(str(params.data))

    async def hear(self, message: Any) -> None:
        self.told.append(type(getattr(message, "root", message)).__name__)
        self.news.set()
        self.news = anyio.Event()


@contextlib.asynccontextmanager
async def connected(url: str, era: str, headers: Any = None) -> AsyncIterator[tuple[Client, Heard]]:
    """An SDK client of that era."""
    heard = Heard()
    callbacks: dict[str, Any] = {
        "elicitation_callback": heard.elicit,
        "sampling_callback": heard.sample,
        "list_roots_callback": heard.roots,
        "logging_callback": heard.log,
        "message_handler": heard.hear,
        "log_level": "info" if era == "modern" else None,
    }
    async with (
        httpx2.AsyncClient(timeout=60, headers=headers) as http,
        Client(streamable_http_client(url, http_client=http), mode=CLIENTS[era], **callbacks) as client,
    ):
        yield client, heard


@contextlib.contextmanager
def served(era: str, wire: str) -> Iterator[dict[str, Any]]:
    """The entry of the configuration for a server of that era."""
    command = (sys.executable, "-m", "tests.matrix.features")
    if wire == "stdio":
        yield server((sys.executable, str(ONE_ERA), era, *command, "stdio"), cwd=str(ROOT))
    else:
        with served_over_http((*command, era)) as url:
            yield {"type": "http", "url": url}


def text(result: Any) -> str:
    assert not result.is_error, result
    return str(result.content[0].text)


# -- features: each passes or raises


async def tools(client: Client, _: Heard) -> None:
    names = [tool.name for tool in (await client.list_tools()).tools]
    assert {"echo", "ask", "structured"} <= set(names), names
    assert text(await client.call_tool("echo", {"text": "hi"})) == "hi"


async def prompts(client: Client, _: Heard) -> None:
    result = await client.get_prompt("greet", {"name": "Ada"})
    assert result.messages[0].content.text == "Greet Ada."  # type: ignore[union-attr]  # it is text


async def resources(client: Client, _: Heard) -> None:
    assert "feature://text" in [str(r.uri) for r in (await client.list_resources()).resources]
    read = (await client.read_resource("feature://text")).contents[0]
    assert read.text == "a text"  # type: ignore[union-attr]  # it is text


async def templates(client: Client, _: Heard) -> None:
    listed = (await client.list_resource_templates()).resource_templates
    assert [t.uri_template for t in listed] == ["feature://item/{number}"]
    read = (await client.read_resource("feature://item/7")).contents[0]
    assert read.text == "item 7"  # type: ignore[union-attr]  # it is text


async def completion(client: Client, _: Heard) -> None:
    ref = types.PromptReference(type="ref/prompt", name="greet")
    completed = await client.complete(ref, {"name": "name", "value": "A"})
    assert completed.completion.values == ["Ada"]


async def pagination(client: Client, _: Heard) -> None:
    first = await client.list_prompts()
    second = await client.list_prompts(cursor=first.next_cursor)
    assert [p.name for p in (*first.prompts, *second.prompts)] == ["greet", "other"] and second.next_cursor is None


async def progress(client: Client, _: Heard) -> None:
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    assert text(await client.call_tool("steps", {}, progress_callback=note)) == "done" and seen == [1, 2, 3]


async def cancellation(client: Client, _: Heard) -> None:
    await client.call_tool("echo", {"text": "so that there is a session to come back to"})
    with anyio.move_on_after(1.0):
        await client.call_tool("wait", {"seconds": 30})
        raise AssertionError("it was not cancelled")
    with anyio.fail_after(10):
        while text(await client.call_tool("was_cancelled", {})) == "[]":  # noqa: ASYNC110  # only the server knows
            await anyio.sleep(0.05)


async def logging(client: Client, heard: Heard) -> None:
    if client.protocol_version < "2026-07-28":
        await client.set_logging_level("info")
    assert text(await client.call_tool("say", {})) == "said"
    with anyio.fail_after(5):
        while "loud enough" not in heard.logged:  # noqa: ASYNC110  # it may come before or after the result
            await anyio.sleep(0.01)


async def changes(client: Client, heard: Heard, what: str, uri: str | None, name: str, server: str = "") -> None:
    tool, call = f"{server}change", {"what": what}
    if client.protocol_version >= "2026-07-28":
        wanted: Any = {"tools_list_changed": True} if uri is None else {"resource_subscriptions": [uri]}
        async with client.listen(**wanted) as subscription:
            assert text(await client.call_tool(tool, call)) == "changed"
            with anyio.fail_after(10):
                event = await anext(aiter(subscription))
            assert type(event).__name__ in ("ToolsListChanged", "ResourceUpdated"), event
        return
    if uri is not None:
        await client.subscribe_resource(uri)
    with anyio.fail_after(10):
        while name not in heard.told:
            # Its own stream may not be open yet at the first one.
            assert text(await client.call_tool(tool, call)) == "changed"
            with anyio.move_on_after(0.5):
                await heard.news.wait()


async def list_changed(client: Client, heard: Heard, server: str = "") -> None:
    await changes(client, heard, "tools", None, "ToolListChangedNotification", server)


async def subscription(client: Client, heard: Heard) -> None:
    await changes(client, heard, "resource", "feature://watched", "ResourceUpdatedNotification")


def asking(kind: str, expected: str, asked: str) -> Callable[[Client, Heard], Awaitable[None]]:
    async def feature(client: Client, heard: Heard) -> None:
        assert expected in text(await client.call_tool("ask", {"kind": kind}))
        assert heard.asked[-1:] == [asked]

    return feature


async def structured(client: Client, _: Heard) -> None:
    result = await client.call_tool("structured", {})
    assert result.structured_content == {"city": "Delft", "degrees": 11.5}


async def errors(client: Client, _: Heard) -> None:
    result = await client.call_tool("fail", {})
    assert result.is_error and "fail" in result.content[0].text  # type: ignore[union-attr]  # it is text
    try:
        await client.read_resource("feature://nothing")
    except MCPError as error:
        assert error.error.code in (-32602, -32002), error
    else:
        raise AssertionError("a resource that is not there was read")


FEATURES: Final[dict[str, Callable[[Client, Heard], Awaitable[None]]]] = {
    "tools": tools,
    "prompts": prompts,
    "resources": resources,
    "templates": templates,
    "completion": completion,
    "pagination": pagination,
    "progress": progress,
    "cancellation": cancellation,
    "logging": logging,
    "list-changed": list_changed,
    "resource subscription": subscription,
    "elicitation form": asking("form", "Ada", "form"),
    "elicitation URL": asking("url", "accept", "url"),
    "sampling": asking("sampling", "Amsterdam", "sampling"),
    "roots": asking("roots", "file:///work", "roots"),
    "structured output": structured,
    "errors": errors,
}
