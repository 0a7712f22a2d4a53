"""`gateway.cli.find_configuration`: the gateway that `stdio --url` speaks to."""

from pathlib import Path

import pytest

from gateway.config.settings import Settings
from tests.requirements import requirement
from tests.unit.cli.test_setup_commands import ran, refused

URL = "http://127.0.0.1:8080"


@requirement("ctx.stdio-front", "ops.hosts")
def test_a_gateway_at_the_default_port_gets_the_key_and_the_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Settings] = []
    monkeypatch.setattr("gateway.serving.stdio.serve_stdio", lambda settings, strict: served.append(settings))
    # The log stays as the tests have it.
    monkeypatch.setattr("gateway.observability.logs.configure_logging", lambda *_: None)
    done = ran("stdio", "--url", URL, MCP_SESSION_KEY="k", MCP_TOKEN="t", MCP_GATEWAY_LOG_LEVEL="error")
    assert done.exit_code == 0, done.output
    origins = served[0].gateway.origins
    assert origins is not None and origins.of("log_level") == "the variable MCP_GATEWAY_LOG_LEVEL"
    (entry,) = served[0].mcpServers.values()
    assert entry.url == f"{URL}/mcp" and entry.is_gateway
    headers = {"MCP-Gateway-Session": "new", "MCP-Gateway-Session-Key": "k", "Authorization": "Bearer t"}
    assert entry.headers == headers


@requirement("ctx.stdio-front")
def test_what_stdio_cannot_speak_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "either --url or a command" in refused("stdio", "--url", URL, "--", "true")
    (own := tmp_path / "own.json").write_text('{"mcpServers": {"a": {"command": "true"}}}')
    assert "either --url or a file" in refused("stdio", "--url", URL, "--config", str(own))
    for url in ("ftp://a.example", "http://[::1"):
        assert "--url: " in refused("stdio", "--url", url)
    for key in ("k\u00e9y", "a${secret:db}"):
        monkeypatch.setenv("MCP_SESSION_KEY", key)
        assert "MCP_SESSION_KEY: with --url it is a header" in refused("stdio", "--url", URL)
    monkeypatch.delenv("MCP_SESSION_KEY")
    monkeypatch.setenv("MCP_TOKEN", "<MCP_TOKEN>")
    assert "MCP_TOKEN: write your API key" in refused("stdio", "--url", URL)
