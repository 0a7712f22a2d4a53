"""The reference server of the TypeScript SDK, which knows the handshake era only, used by a modern client."""

import warnings
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.client import Client

from tests.matrix.run import Heard, connected, text
from tests.requirements import requirement
from tests.support.gateway_process import running_gateway, server
from tests.tools.obtain import node, npm_packages

EVERYTHING = {"@modelcontextprotocol/server-everything": "2026.8.31"}


def everything() -> dict[str, Any]:
    folder = npm_packages(EVERYTHING)
    return server((str(node()), str(folder / "node_modules/@modelcontextprotocol/server-everything/dist/index.js")))


@pytest.mark.parametrize("era", ["modern", "legacy"])
@requirement("spec.bridge", "spec.complete")
async def test_everything_it_offers(era: str) -> None:
    warnings.simplefilter("ignore")
    with running_gateway({"everything": everything()}) as gateway, anyio.fail_after(90):
        async with connected(gateway.url, era) as (client, heard):
            await tools_of(client, heard)
            await questions_of(client, heard)
            await prompts_of(client)
            await resources_of(client, heard, era)


async def tools_of(client: Client, heard: Heard) -> None:
    names = {tool.name for tool in (await client.list_tools()).tools}
    assert {"echo", "get-roots-list", "trigger-sampling-request", "trigger-elicitation-request"} <= names
    weather = await client.call_tool("get-structured-content", {"location": "Chicago"})
    assert weather.structured_content and "temperature" in weather.structured_content
    annotated = await client.call_tool("get-annotated-message", {"messageType": "error", "includeImage": True})
    assert annotated.content[0].annotations is not None and annotated.content[-1].type == "image"
    links = await client.call_tool("get-resource-links", {"count": 2})
    assert [content.type for content in links.content].count("resource_link") == 2
    assert "MCP_SESSION_ID" in text(await client.call_tool("get-env", {}))
    steps: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    arguments = {"duration": 0.4, "steps": 4}
    done = await client.call_tool("trigger-long-running-operation", arguments, progress_callback=note)
    assert "completed" in text(done)
    # The SDK runs each callback in a task of its own: on a busy machine some run behind the result.
    with anyio.fail_after(5):
        while len(steps) < 4:  # noqa: ASYNC110  # it has no event for that
            await anyio.sleep(0.01)
    wrong = await client.call_tool("get-sum", {"a": 2})
    assert wrong.is_error and "required property" in str(wrong.content)


async def questions_of(client: Client, heard: Heard) -> None:
    assert "Amsterdam" in text(await client.call_tool("trigger-sampling-request", {"prompt": "Capital?"}))
    asked = await client.call_tool("trigger-elicitation-request", {})
    assert "Ada" in "".join(getattr(content, "text", "") for content in asked.content), asked
    assert "/work" in text(await client.call_tool("get-roots-list", {}))
    assert {"sampling", "form", "roots"} <= set(heard.asked)


async def prompts_of(client: Client) -> None:
    names = [prompt.name for prompt in (await client.list_prompts()).prompts]
    assert names == ["simple-prompt", "args-prompt", "completable-prompt", "resource-prompt"]
    filled = await client.get_prompt("args-prompt", {"city": "Delft"})
    assert "Delft" in filled.messages[0].content.text  # type: ignore[union-attr]  # it is text
    ref = types.PromptReference(type="ref/prompt", name="completable-prompt")
    completed = await client.complete(ref, {"name": "department", "value": "E"})
    assert "Engineering" in completed.completion.values


async def resources_of(client: Client, heard: Heard, era: str) -> None:
    static = [str(resource.uri) for resource in (await client.list_resources()).resources]
    assert (await client.read_resource(static[0])).contents
    assert len((await client.list_resource_templates()).resource_templates) == 2
    uri = "demo://resource/dynamic/text/1"
    assert (await client.read_resource(uri)).contents
    if era == "modern":
        async with client.listen(resource_subscriptions=[uri]) as subscription:
            assert subscription.honored.resource_subscriptions == [uri]
            await client.call_tool("toggle-subscriber-updates", {})
            with anyio.fail_after(20):
                event = await anext(aiter(subscription))
            assert getattr(event, "uri", "") == uri
    else:
        await client.subscribe_resource(uri)
        await client.call_tool("toggle-subscriber-updates", {})
        with anyio.fail_after(20):
            while "ResourceUpdatedNotification" not in heard.told:
                await heard.news.wait()
