"""The documents say what the code does: every code block of them is run, and the reference is the code's."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from pydantic import BaseModel

from gateway.config.load import models_in, variables
from gateway.config.sandbox import SandboxSettings
from gateway.config.sessions import DEFAULT_CONTEXT_ENV
from gateway.config.settings import GatewaySettings, Settings
from tests.support.credentials import sha256
from tests.support.document_blocks import DOCUMENTS, Block, blocks
from tests.support.gateway_process import DEMO, ROOT, SIGNED, RunningGateway, running_gateway, server
from tests.support.mcp_clients import tool_text
from tests.support.redis_server import running_redis
from tests.support.waiting import eventually
from tests.tools.obtain import node_environment
from tests.tools.settings_reference import models, pages
from transports.upstream.stdio import INHERITED

KNOWN = ("serves", "serves, in the project", "on stdin", "with ", "elsewhere: ", "not here: ")
SERVER = """
from mcp.server import MCPServer

mcp = MCPServer("mine")
mcp.run("stdio")
"""


def test_the_reference_of_settings_is_what_the_code_says() -> None:
    for file, text in pages().items():
        assert file.read_text(encoding="utf-8") == text, "python -m tests.tools.settings_reference"


def test_no_setting_is_on_neither_page() -> None:
    found: set[type[BaseModel]] = set()
    new: set[type[BaseModel]] = {Settings}
    while new:
        found |= new
        new = {kind for model in new for field in model.model_fields.values() for kind in models_in(field.annotation)}
        new -= found
    # `direct` and `sandboxed` of a sandbox are tables like the one around them.
    assert found - models() == {Settings, SandboxSettings}


def test_every_setting_can_be_given_as_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GatewaySettings.model_fields:
        monkeypatch.setenv(f"MCP_GATEWAY_{name.upper()}", '{"given": "1"}')
    assert variables(GatewaySettings) == {name: {"given": "1"} for name in GatewaySettings.model_fields}


def test_names_of_variables_are_the_codes() -> None:
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    for name in (*DEFAULT_CONTEXT_ENV, *DEFAULT_CONTEXT_ENV.values(), *INHERITED):
        assert f"`{name}`" in text, name


def test_no_two_decisions_have_one_number() -> None:
    files = sorted((ROOT / "docs/adr").glob("*.md"))
    numbers = [file.name[:4] for file in files]
    assert len(set(numbers)) == len(numbers) > 20
    assert [file.read_text(encoding="utf-8").split(".")[0] for file in files] == [f"# {int(one)}" for one in numbers]


def test_every_link_leads_somewhere() -> None:
    for path in DOCUMENTS:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(#[^)]*)?\)", path.read_text(encoding="utf-8")):
            there = path.parent / target if target else path
            assert there.exists(), f"{path.name}: {target}"
            if anchor:
                assert anchor[1:] in _anchors(there), f"{path.name}: {target}{anchor}"


def test_each_claim_of_the_security_model_names_a_test() -> None:
    """The threat model promises nothing that no test shows."""
    text = (ROOT / "docs/security.md").read_text(encoding="utf-8").partition("## Known limits")[0]
    claims = [row for row in re.findall(r"^\| (?!threat |---)(.*) \|$", text, re.MULTILINE) if row.count(" | ") >= 2]
    assert len(claims) >= 30
    for claim in claims:
        assert re.search(r"`tests/[\w/]+\.py::\w+`", claim.rpartition(" | ")[2]), f"no test is named: {claim}"


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# -- code blocks


def test_no_block_is_of_a_kind_that_nothing_runs() -> None:
    known = {str(block) for block in blocks("json", "python", "js", "sh", "mermaid", "")}  # mermaid draws diagrams
    assert known >= {str(block) for path in [ROOT] for block in blocks(*_languages())}
    for block in blocks("sh", "js", "python"):
        assert not block.note or block.note.startswith(KNOWN), f"{block}: {block.note}"
        kind, _, rest = block.note.partition(": ")
        assert kind != "elsewhere" or (ROOT / rest).exists(), f"{block}: {rest}"
        assert block.language == "sh" or kind == "elsewhere" or block in PYTHON, f"{block}: nothing runs it"


def _languages() -> set[str]:
    return {
        language for path in DOCUMENTS for language in re.findall(r"^```(\w+)", path.read_text("utf-8"), re.MULTILINE)
    }


@pytest.mark.parametrize("block", [*blocks("json")], ids=str)
def test_json_is_what_it_says(block: Block) -> None:
    value = json.loads(block.text)
    if value.keys() & {"mcpServers", "gateway"}:
        for entry in value.get("mcpServers", {}).values():
            if entry.keys().isdisjoint({"command", "url", "in_process"}):
                entry["command"] = "server"
        Settings.model_validate(value)


PYTHON = [block for block in blocks("python") if not block.note]


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_runs(block: Block, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", block.text]
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr


@dataclass(frozen=True, slots=True)
class World:
    """What a reader has in front of them: a folder, a gateway at port 8080, a Redis."""

    folder: Path
    base: str
    redis: str
    env: dict[str, str]

    def put_into(self, text: str) -> str:
        """A block, for the places that are there."""
        text = text.replace("http://127.0.0.1:8080", self.base)
        text = re.sub(r"redis://(localhost|redis):6379(/0)?", self.redis, text)
        return re.sub(r"--port \d+", "--port 0", text)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "my_server.py").write_text(SERVER, encoding="utf-8")
    servers = {"demo": server(DEMO, env={"PYTHONPATH": str(ROOT)})}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    binaries = str(Path(sys.executable).parent)
    with running_redis() as redis:
        options = {"store": redis.url, "admin": {"keys": {"olga": sha256("an-operators-key")}}}
        with running_gateway(servers, options=options, env=SIGNED, must_stop=False) as gateway:
            env = {
                **node_environment(),
                "npm_config_cache": str(ROOT / ".cache/npm"),
                **SIGNED,
                "HOME": str(folder),
                "MCP_GATEWAY_ADMIN_KEY": "an-operators-key",
                "MCP_GATEWAY_URL": gateway.base,
            }
            env["PATH"] = os.pathsep.join((binaries, env["PATH"]))
            yield World(folder, gateway.base, redis.url, env)


@pytest.mark.parametrize(
    "block", [b for b in blocks("sh") if not b.note.startswith(("not here", "elsewhere"))], ids=str
)
def test_a_command_does_what_the_document_says(block: Block, world: World) -> None:
    if block.note.startswith("serves"):
        with _serving(block.text, world, ROOT if block.note.endswith("in the project") else world.folder) as base:
            # A server that npm has to fetch first cannot answer where there is no registry: then nothing is ready.
            path = "healthz" if block.note.endswith("npm fetches") else "readyz"
            assert eventually(lambda: httpx.get(f"{base}/{path}").status_code == 200)
    elif block.note.startswith("with "):
        command = f"mcp-session-gateway run --config {block.note.removeprefix('with ')}"
        with _serving(command, world, world.folder) as base:
            _prints(block, _runs(block.text.replace("http://127.0.0.1:8080", base), world))
    else:
        _prints(block, _runs(block.text, world, stdin="" if block.note == "on stdin" else None))


def _prints(block: Block, said: str) -> None:
    """The lines of the document, where `…` stands for any text."""
    wanted, lines = block.output.splitlines(), said.splitlines()
    if wanted:
        forms = [".*".join(re.escape(part) for part in line.rstrip().split("…")) for line in wanted]
        assert len(lines) == len(wanted), said
        assert all(re.fullmatch(form, line.rstrip()) for form, line in zip(forms, lines, strict=True)), said


def _runs(text: str, world: World, stdin: str | None = None) -> str:
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", world.put_into(text)],
        cwd=world.folder,
        env=world.env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert '"error"' not in ran.stdout, ran.stdout
    return ran.stdout


@contextlib.contextmanager
def _serving(text: str, world: World, folder: Path) -> Iterator[str]:
    """A command that serves until it is told to stop; where it does."""
    process = subprocess.Popen(
        ["bash", "-euc", f"exec {world.put_into(text).strip()}"],
        cwd=folder,
        env={**world.env, "MCP_GATEWAY_PORT": "0"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    gateway = RunningGateway(process)
    try:
        gateway.wait_ready()
        yield gateway.base
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)


def test_the_call_in_the_readme_finds_its_session_again(demo: RunningGateway) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```sh\n(curl .*?)```", readme, re.DOTALL)
    assert block
    headers = dict(re.findall(r"-H '([^:]+): ([^']+)'", block[1]))
    body = re.search(r"-d '(.*?)' ", block[1], re.DOTALL)
    assert body
    with httpx.Client() as http:
        counts = [tool_text(http.post(demo.url, content=body[1], headers=headers)) for _ in range(2)]
        assert counts == ["1", "2"], "the cookie brings you back"
        http.cookies.clear()
        assert tool_text(http.post(demo.url, content=body[1], headers=headers)) == "1"
