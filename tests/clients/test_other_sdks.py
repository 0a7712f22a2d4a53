"""Clients of the TypeScript SDKs, 1.x and 2.x, in processes of their own."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, sha256
from tests.support.gateway_process import DEMO, RunningGateway, running_gateway, server
from tests.tools.obtain import node, npm_packages

HERE = Path(__file__).parent
TYPESCRIPT = {"@modelcontextprotocol/sdk": "1.32.2", "@modelcontextprotocol/client": "2.4.0"}
ONE_ERA = HERE.parent / "support/single_era_server.py"
ERAS = {"old": "legacy", "new": "modern"}
TOOLS = ["whoami", "count", "ask", "slow", "remember", "recall"]


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    """The demo server, as it is and in each era only."""
    servers = {name: server((sys.executable, str(ONE_ERA), era, *DEMO)) for name, era in ERAS.items()}
    with running_gateway({"main": server(DEMO), **servers}) as running:
        yield running


@requirement("spec.legacy", "spec.modern")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("generation", "era"), [("1", "legacy"), ("2", "legacy"), ("2", "modern")])
def test_the_typescript_sdks(gateway: RunningGateway, generation: str, era: str) -> None:
    folder = npm_packages(TYPESCRIPT)
    script = folder / "sdk_ts.mjs"  # beside node_modules, which is where imports are looked for
    shutil.copy(HERE / "sdk_ts.mjs", script)
    for url in (gateway.at(name) for name in ("main", *ERAS)):
        command = [str(node()), str(script), generation, url, era]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        told = json.loads(finished.stdout)
        # A modern one keeps neither header nor cookie: without a credential it is a new client at every call.
        assert told["counts"] == ["1", "1" if era == "modern" else "2"], url
        assert (told["tools"], told["slow"], told["ask"]) == (TOOLS, "done", "Hello, Ada!"), url
        assert told["whoami"].keys() == {"session_id", "workspace", "trust", "principal"}, url


TWO_CLIENTS = """
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
const [url, credential] = process.argv.slice(2);
const connected = async (key) => {
  const client = new Client({ name: "equal", version: "1" }, { versionNegotiation: { mode: { pin: "2026-07-28" } } });
  const headers = { Authorization: `Bearer ${credential}`, ...(key && { "MCP-Gateway-Session-Key": key }) };
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
  return client;
};
const count = async (client) => {
  try {
    const { content, _meta } = await client.callTool({ name: "count", arguments: {} });
    return [content[0].text, _meta?.["io.github.mcp-session-gateway/shared"]?.line ?? ""];
  } catch (error) {
    return ["refused", error.message];
  }
};
const told = [];
for (const keys of [["", ""], ["one", "two"]]) {
  const clients = await Promise.all(keys.map(connected));
  for (let n = 0; n < 2; n++) for (const client of clients) told.push(await count(client));
  await Promise.all(clients.map((client) => client.close()));
}
console.log(JSON.stringify(told));
"""


@requirement("cli.default-shared")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", [True, "refuse"])
def test_the_second_of_two_equal_clients_learns_that_it_shares_a_session_or_is_refused(mode: bool | str) -> None:
    script = npm_packages(TYPESCRIPT) / "two_clients.mjs"
    script.write_text(TWO_CLIENTS)
    options = {"api_keys": {"alice": sha256(KEYS["alice"])}, "session": {"default_session": mode}}
    with running_gateway({"main": server(DEMO)}, options=options) as gateway:
        command = [str(node()), str(script), gateway.url, KEYS["alice"]]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    told = json.loads(finished.stdout)
    assert [text for text, _ in told] == [*(["refused"] * 4 if mode == "refuse" else "1234"), *"1122"]
    is_told = ["MCP-Gateway-Session-Key" in line for _, line in told]
    assert is_told == [*([True] * 4 if mode == "refuse" else [False, True] * 2), *[False] * 4], told
