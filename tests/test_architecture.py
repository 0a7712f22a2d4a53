"""The house stands as docs/architecture.md says: imports go down only, pure modules stay pure, files hold one idea."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.requirements import requirement

ROOT = Path(__file__).parent.parent
LAYERS = {
    "gateway": {"gateway", "session_store", "transports"},
    "session_store": {"session_store"},
    "transports": {"transports"},
}
PURE = [
    "session_store/session.py",
    "session_store/tokens.py",
    "session_store/limits.py",
    "session_store/metadata.py",
    "session_store/record.py",
    "transports/jsonrpc.py",
    "transports/sse.py",
    "transports/inbound/modern.py",
    "transports/upstream/lines.py",
    "gateway/protocol/catalog.py",
    "gateway/context/facts.py",
    "gateway/protocol/params.py",
    "gateway/identity/request_context.py",
    "gateway/identity/context_rules.py",
    "gateway/calls/shared_server.py",
    "gateway/identity/subjects.py",
    "gateway/protocol/results.py",
    "gateway/protocol/handshake.py",
]
IO = {"asyncio", "socket", "subprocess", "redis", "sqlite3", "threading"}
SOURCES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down_only(path: Path) -> None:
    layer = path.relative_to(ROOT).parts[0]
    tops = {name.partition(".")[0] for name in imported(path)}
    assert (tops & LAYERS.keys()) - LAYERS[layer] == set()
    assert "tests" not in tops
    if layer == "session_store":
        assert tops & {"mcp", "mcp_types", "starlette", "uvicorn", "httpx", "httpx2"} == set()


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_do_no_io(name: str) -> None:
    assert {module.partition(".")[0] for module in imported(ROOT / name)} & IO == set()


def test_the_demo_server_needs_nothing_heavy() -> None:
    allowed = {"base64", "json", "os", "secrets", "socket", "sys", "threading", "collections", "typing", "http"}
    assert {module.partition(".")[0] for module in imported(ROOT / "gateway/demo_server.py")} <= allowed


@pytest.mark.parametrize(
    "path", [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))], ids=lambda p: str(p.relative_to(ROOT))
)
def test_no_file_is_too_long(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500


def test_the_tree_names_no_machine() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    # Spelled so that this file does not match itself.
    machine = re.compile("/" + "work/|" + "/" + "root/|" + "shared" + r"/(design|wire|style|requirements)\.md")
    for name in tracked:
        path = ROOT / name
        if path.is_file() and path.suffix != ".png":
            assert not machine.search(path.read_text(encoding="utf-8", errors="replace")), name


CONTEXT_VARIABLES = {
    "gateway/observability/logs.py": "the correlation id of log lines",
    "gateway/observability/spans.py": "the span of a request, for who reports its end",
    "gateway/integrations/mcp_sdk.py": "the log that an SDK's event store writes to",
    "session_store/context.py": "current_session(), for the code of tools",
}


@requirement("wall.authority")
def test_no_context_variable_holds_what_a_credential_says() -> None:
    """Servers start a connection's next request in the context of the one before: authority travels as an argument."""
    found = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).partition("[")[0].endswith("ContextVar"):
                found[str(path.relative_to(ROOT))] = ast.unparse(node)
    assert found.keys() == CONTEXT_VARIABLES.keys()
    for words in ("granted", "principal", "claim", "credential", "permission", "trust"):
        assert not any(words in variable.lower() for variable in found.values())
