"""A server of the official SDK with one of everything: `features.py stdio`, or `features.py legacy|modern PORT`.

On HTTP it is of one era, and refuses the other's first message the way servers did, or do, that know no better. On
stdio, `tests/support/single_era_server.py` does so in front of it.
"""

import asyncio
import json
import logging
import sys
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

MODERN = "2026-07-28"
NAME_SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
QUESTIONS: dict[str, Any] = {
    "form": types.ElicitRequest(
        params=types.ElicitRequestFormParams(message="What is your name?", requested_schema=NAME_SCHEMA)
    ),
    "url": types.ElicitRequest(
        params=types.ElicitRequestURLParams(message="Sign in", url="https://example.com/sign-in", elicitation_id="e1")
    ),
    "sampling": types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(
            messages=[types.SamplingMessage(role="user", content=types.TextContent(type="text", text="Capital?"))],
            max_tokens=10,
        )
    ),
    "roots": types.ListRootsRequest(),
}
ANSWERS: dict[str, Any] = {
    "elicitation/create": types.ElicitResult,
    "sampling/createMessage": types.CreateMessageResult,
    "roots/list": types.ListRootsResult,
}

mcp = MCPServer("features", instructions="Ask for anything.")
cancelled: list[str] = []


class Weather(BaseModel):
    """A structured result."""

    city: str
    degrees: float


@mcp.tool()
def echo(text: str) -> str:
    """Says it back."""
    return text


@mcp.tool()
def structured() -> Weather:
    """Structured output."""
    return Weather(city="Delft", degrees=11.5)


@mcp.tool()
def fail() -> str:
    """A tool's own error."""
    raise ValueError("it went wrong")


@mcp.tool()
async def steps(ctx: Context) -> str:
    """Reports progress."""
    for step in (1, 2, 3):
        await ctx.report_progress(step, 3, f"step {step}")
    return "done"


@mcp.tool()
async def say(ctx: Context) -> str:
    """Logs at two levels."""
    await ctx.debug("too quiet")  # pyright: ignore[reportDeprecated]
    await ctx.warning("loud enough")  # pyright: ignore[reportDeprecated]
    return "said"


@mcp.tool()
async def wait(seconds: float) -> str:
    """Takes long, and notes it when it is cancelled."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        cancelled.append("wait")
        raise
    return "waited"


@mcp.tool()
def was_cancelled() -> str:
    """What was cancelled so far."""
    return json.dumps(cancelled)


@mcp.tool()
async def ask(kind: str, ctx: Context) -> Any:
    """Asks the client something, in the words of its era."""
    request = QUESTIONS[kind]
    if ctx.protocol_version == MODERN:
        if not ctx.input_responses:
            return types.InputRequiredResult(input_requests={"question": request}, request_state=f"asked for {kind}")
        assert ctx.request_state == f"asked for {kind}", ctx.request_state
        answer: Any = ctx.input_responses["question"]
    else:
        answer = await ctx.session.send_request(request, ANSWERS[request.method])
    return answer.model_dump_json(exclude_none=True)


@mcp.tool()
async def change(what: str, ctx: Context) -> str:
    """Says that a list, or a resource, has changed."""
    modern = ctx.protocol_version == MODERN
    if what == "tools":
        await (ctx.notify_tools_changed() if modern else ctx.session.send_tool_list_changed())
    else:
        uri = "feature://watched"
        await (ctx.notify_resource_updated(uri) if modern else ctx.session.send_resource_updated(uri))
    return "changed"


@mcp.prompt()
def greet(name: str) -> str:
    """A prompt with an argument."""
    return f"Greet {name}."


@mcp.resource("feature://text")
def text_resource() -> str:
    """A text."""
    return "a text"


@mcp.resource("feature://watched")
def watched_resource() -> str:
    """Something that changes."""
    return "watched"


@mcp.resource("feature://item/{number}")
def item(number: str) -> str:
    """A template."""
    return f"item {number}"


@mcp.completion()  # type: ignore[no-untyped-call, untyped-decorator]  # the SDK has no hint here
async def complete(ref: Any, argument: Any, context: Any) -> types.Completion:
    """Completes names."""
    return types.Completion(values=[f"{argument.value}da"], total=1, has_more=False)


async def pages(_: Any, params: Any) -> types.ListPromptsResult:
    """Two pages of prompts."""
    first = [types.Prompt(name="greet", arguments=[types.PromptArgument(name="name", required=True)])]
    if params is None or params.cursor is None:
        return types.ListPromptsResult(prompts=first, next_cursor="second page")
    assert params.cursor == "second page", params.cursor
    return types.ListPromptsResult(prompts=[types.Prompt(name="other")])


async def accepted(_: Any, params: Any) -> types.EmptyResult:
    """Notes nothing."""
    return types.EmptyResult()


def prepare() -> None:
    lowlevel = mcp._lowlevel_server
    lowlevel.add_request_handler("prompts/list", types.PaginatedRequestParams, pages)
    lowlevel.add_request_handler("logging/setLevel", types.SetLevelRequestParams, accepted)
    lowlevel.add_request_handler("resources/subscribe", types.SubscribeRequestParams, accepted)
    lowlevel.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, accepted)
    original = lowlevel.create_initialization_options

    def announcing(*_: Any, **__: Any) -> Any:
        from mcp.server.lowlevel import NotificationOptions

        return original(NotificationOptions(tools_changed=True, prompts_changed=True, resources_changed=True))

    lowlevel.create_initialization_options = announcing  # type: ignore[method-assign]  # the SDK has no switch for it


class OneEra:
    """An ASGI app that serves one era only."""

    def __init__(self, app: Any, era: str) -> None:
        self._app = app
        self._era = era

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            version = dict(scope["headers"]).get(b"mcp-protocol-version", b"").decode()
            if (version == MODERN) != (self._era == "modern"):
                code, status = (-32601, 404) if self._era == "modern" else (-32600, 400)
                error = {"code": code, "message": "no such method, or no such version"}
                body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
                head = [(b"content-type", b"application/json")]
                await send({"type": "http.response.start", "status": status, "headers": head})
                await send({"type": "http.response.body", "body": body})
                return
        await self._app(scope, receive, send)


def main() -> None:
    prepare()
    if sys.argv[1] == "stdio":
        mcp.run("stdio")
    else:
        era, port = sys.argv[1:3]
        logging.disable(logging.INFO)
        uvicorn.run(OneEra(mcp.streamable_http_app(), era), host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
