"""Every feature for each pair of eras, and one endpoint that serves clients and servers of both."""

import warnings
from collections.abc import Iterator

import anyio
import pytest

from tests.matrix.run import CELLS, CLIENTS, FEATURES, connected, list_changed, served, text
from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway, running_gateway


@pytest.mark.parametrize("cell", CELLS, ids=" ".join)
@requirement("spec.bridge", "spec.complete", "ctx.isolated")
async def test_every_feature_passes(cell: tuple[str, str, str]) -> None:
    ours, theirs, wire = cell
    warnings.simplefilter("ignore")  # the SDK's, that the old words are old
    with served(theirs, wire) as entry, running_gateway({"features": entry}) as gateway:
        with anyio.fail_after(60):
            async with connected(gateway.url, ours) as (client, heard):
                for name, feature in FEATURES.items():
                    try:
                        await feature(client, heard)
                    except BaseException as error:
                        error.add_note(f"feature: {name}")
                        raise


# -- servers of both eras, behind commands and a URL, on one endpoint


NAMES = ("far", "new", "old")


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    limits = {"list_timeout_s": 30}  # whatever else the machine does, the lists are complete
    with served("legacy", "stdio") as old, served("modern", "stdio") as new, served("legacy", "HTTP") as far:
        with running_gateway({"old": old, "new": new, "far": far}, options={"limits": limits}) as running:
            yield running


@pytest.mark.parametrize("era", CLIENTS)
@requirement("spec.bridge", "spec.complete", "ctx.isolated")
async def test_one_endpoint_serves_all_of_them(gateway: RunningGateway, era: str) -> None:
    warnings.simplefilter("ignore")
    with anyio.fail_after(60):
        async with connected(gateway.url, era) as (client, heard):
            tools = [tool.name for tool in (await client.list_tools()).tools]
            assert {f"{name}__echo" for name in NAMES} <= set(tools)
            assert [n for n in tools if n.endswith("echo")] == ["old__echo", "new__echo", "far__echo"], "in order"
            for name in NAMES:
                assert text(await client.call_tool(f"{name}__echo", {"text": name})) == name
                for kind, part in (("form", "Ada"), ("sampling", "Amsterdam"), ("roots", "file:///work")):
                    assert part in text(await client.call_tool(f"{name}__ask", {"kind": kind}))
                prompt = await client.get_prompt(f"{name}__greet", {"name": name})
                assert name in prompt.messages[0].content.text  # type: ignore[union-attr]  # it is text
            prompts, cursor = [], None
            while True:
                page = await client.list_prompts(cursor=cursor)
                prompts += [prompt.name for prompt in page.prompts]
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert sorted(prompts) == sorted(f"{name}__{prompt}" for name in NAMES for prompt in ("greet", "other"))
            assert (await client.read_resource("feature://text")).contents
            for name in NAMES:
                heard.told.clear()
                await list_changed(client, heard, f"{name}__")
