"""A tool that stores too much need not explain it: its caller reads which limit it was."""

import sys

import httpx

from tests.requirements import requirement
from tests.support.gateway_process import running_gateway, server
from tests.support.mcp_clients import Legacy, Modern, failed_text, messages, tool_text

OBJECT = "tests.support.filling_server"
SERVERS = {
    "object": {"in_process": f"{OBJECT}:server"},
    "low": {"in_process": f"{OBJECT}:lowlevel"},
    "child": server((sys.executable, "-m", OBJECT), env={"PYTHONPATH": "."}),
}
TOO_LARGE = "the value of 'a' is 70002 bytes of JSON, more than 65536"


@requirement("ctx.limits")
def test_what_a_tool_cannot_store_its_caller_reads_in_the_words_of_the_limit(http: httpx.Client) -> None:
    with running_gateway(SERVERS) as gateway:
        client = Legacy(gateway.url, http).open()
        for kind in ("object", "child"):
            large = client.tool(f"{kind}__fill", {"key": "a", "size": 70_000})
            assert failed_text(large) == f"Error executing tool fill: {TOO_LARGE}"
            assert tool_text(client.tool(f"{kind}__fill", {"key": f"{kind}0", "size": 10})) == "stored", "it lives on"
            bad = failed_text(client.tool(f"{kind}__increment", {"key": f"{kind}0"}))
            assert bad.endswith(f"the value of '{kind}0' is not an integer and cannot be incremented")
            assert failed_text(client.tool(f"{kind}__fail")) == "Error executing tool fail", "others stay hidden"
        sizes = [client.tool("object__fill", {"key": f"k{n}", "size": 60_000}) for n in range(18)]
        assert [tool_text(size) for size in sizes[:17]] == ["stored"] * 17
        assert "the session's state would be 10" in failed_text(sizes[17]) and "1048576" in failed_text(sizes[17])
        written = failed_text(client.tool("object__annotate", {"size": 11_000}))
        assert "would be 11004 bytes" in written and "10240" in written
        read = messages(client.call("resources/read", {"uri": "filling://too-large"}))[-1]["error"]
        assert "70002 bytes of JSON, more than 65536" in read["message"]
        low = messages(client.tool("low__fill", {"size": 70_000}))[-1]["error"]
        assert low["message"] == TOO_LARGE.replace("'a'", "'low'")
        modern = Modern(gateway.url, http).tool("object__fill", {"key": "a", "size": 70_000})
        assert failed_text(modern) == f"Error executing tool fill: {TOO_LARGE}"
