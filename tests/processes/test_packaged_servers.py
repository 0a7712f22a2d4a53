"""Sandboxed sessions start a published server from one package, which none of them can change."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway, running_gateway
from tests.support.mcp_clients import Legacy
from tests.support.package_registry import PackageRegistry, package_registry
from tests.tools.obtain import npx, python_with

NODE_SERVER = """#!/usr/bin/env node
const fs = require("fs")
function poisoned() {
  try {
    fs.appendFileSync(__filename, "//")
    return "changed"
  } catch (error) {
    return error.code
  }
}
function result(method, params) {
  if (method === "initialize") {
    const own = { name: "s", version: "1" }
    return { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo: own }
  }
  if (method === "tools/list") return { tools: [{ name: "poison", inputSchema: { type: "object" } }] }
  const text = [poisoned(), process.argv[2], __filename].join(" ")
  return method === "tools/call" ? { content: [{ type: "text", text }] } : undefined
}
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method, params } = JSON.parse(line)
  if (id === undefined) return
  const found = result(method, params)
  const answer = found ? { result: found } : { error: { code: -32601, message: "" } }
  console.log(JSON.stringify({ jsonrpc: "2.0", id, ...answer }))
})
"""
PYTHON_SERVER = """
import errno, json, sys

def poisoned():
    try:
        with open(__file__, "a") as file:
            file.write("#")
        return "changed"
    except OSError as error:
        return errno.errorcode[error.errno]

def result(method, params):
    if method == "initialize":
        own = {"name": "s", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": own}
    if method == "tools/list":
        return {"tools": [{"name": "poison", "inputSchema": {"type": "object"}}]}
    text = f"{poisoned()} {sys.argv[1]} {__file__}"
    return {"content": [{"type": "text", "text": text}]} if method == "tools/call" else None

def main():
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            found = result(message["method"], message.get("params"))
            answer = {"error": {"code": -32601, "message": ""}} if found is None else {"result": found}
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""


@pytest.fixture(scope="module")
def registry() -> Iterator[PackageRegistry]:
    with package_registry() as made:
        made.npm("published", "1.0.0", {"cli.js": NODE_SERVER}, bin="cli.js")
        made.wheel("published", "1.0.0", PYTHON_SERVER)
        yield made


@pytest.fixture(scope="module")
def gateway(registry: PackageRegistry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("packages")
    programs = [str(Path(npx()[0]).parent), str(python_with({"uv": ">=0.9"}).parent), "/usr/bin", "/bin"]
    env = {**registry.environment, "PATH": os.pathsep.join(programs)}

    def entry(*command: str) -> dict[str, Any]:
        return {"command": command[0], "args": list(command[1:]), "env": env, "sandbox": "standard"}

    servers = {
        "npm": entry("npx", "-y", "published", "argument"),
        "pypi": entry("uvx", "published", "argument"),
        "absent": entry("npx", "-y", "absent"),
    }
    reach = [registry.url.removeprefix("http://")]
    options = {"packages": {"folder": str(folder), "reach": reach}}
    with running_gateway(servers, options=options, must_stop=False) as running:
        yield running


@contextmanager
def client(gateway: RunningGateway, name: str) -> Iterator[Legacy]:
    with httpx.Client(timeout=60) as http:
        session = Legacy(f"{gateway.base}/servers/{name}/mcp", http).open()
        yield session
        session.delete()


@requirement("box.package-once")
@pytest.mark.parametrize("name", ["npm", "pypi"])
def test_no_session_changes_what_others_run(gateway: RunningGateway, registry: PackageRegistry, name: str) -> None:
    """Each session runs the program itself, without npx or uvx around, and cannot write to it."""
    found = []
    for _ in range(2):
        with client(gateway, name) as session:
            answer = session.tool("poison")
            assert "result" in answer.text, answer.text
            found.append(answer.json()["result"]["content"][0]["text"].split())
    # Refused by the kernel's rules, or where the cache is below a /tmp that is the server's own, mounted to be read.
    assert all(words[0] in ("EACCES", "EROFS") and words[1] == "argument" for words in found)
    assert found[0][2] == found[1][2]
    once = {"npm": "/published/-/published-1.0.0.tgz", "pypi": "/simple/published/"}[name]
    assert registry.asked.count(once) == 1


@requirement("box.package-errors")
def test_a_client_is_told_why_a_package_could_not_be_fetched(gateway: RunningGateway) -> None:
    with httpx.Client(timeout=60) as http:
        answer = Legacy(f"{gateway.base}/servers/absent/mcp", http).initialize()
    assert "server 'absent': the package absent could not be fetched: Not Found" in answer.json()["error"]["message"]
