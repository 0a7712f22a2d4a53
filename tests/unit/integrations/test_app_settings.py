"""What `SessionMiddleware` is given, by arguments and by the environment."""

from pathlib import Path
from typing import Any

import pytest

from gateway import SessionMiddleware
from gateway.config.load import ConfigurationError
from gateway.integrations.app_settings import backend_of, ring_of, settings_of
from session_store import KeyRing, MemoryBackend
from session_store.small_store import SmallBackend
from tests.requirements import requirement

pytestmark = requirement("app.settings")

KEY = "k" * 40


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORE", "STORE_FILE", "KEYS", "KEYS_FILE", "SESSION__IDLE_TTL_S"):
        monkeypatch.delenv(f"MCP_GATEWAY_{name}", raising=False)


def test_the_environment_gives_what_no_argument_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_GATEWAY_STORE", "redis://there:6379/0")
    monkeypatch.setenv("MCP_GATEWAY_SESSION__IDLE_TTL_S", "60")
    monkeypatch.setenv("MCP_GATEWAY_SESSION__COOKIE", "false")
    monkeypatch.setenv("MCP_GATEWAY_PORT", "of a gateway, not of an app")
    settings = settings_of(None, {"idle_ttl_s": None, "max_age_s": 90.0})
    assert settings.store == "redis://there:6379/0" and not settings.session.cookie
    assert (settings.session.idle_ttl_s, settings.session.max_age_s) == (60.0, 90.0)
    settings = settings_of("memory://", {"idle_ttl_s": 5.0})
    assert settings.store == "memory://" and settings.session.idle_ttl_s == 5.0


def test_the_stores_url_may_be_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("redis://:secret@there:6379/0\n")
    monkeypatch.setenv("MCP_GATEWAY_STORE_FILE", str(file))
    assert settings_of(None, {}).store == "redis://:secret@there:6379/0"
    assert settings_of("memory://", {}).store == "memory://"


@pytest.mark.parametrize(
    ("arguments", "variable", "words"),
    [
        ({}, "", "needs a store.*MCP_GATEWAY_STORE"),
        ({"store": "redis:///"}, "", "give a host"),
        ({"store": "redis://there"}, "", "needs keys.*MCP_GATEWAY_KEYS"),
        ({"store": "redis://there", "keys": "short"}, "", "keys=….*5 characters"),
        ({"store": "memory://", "idle_ttl_s": 0}, "", "idle_ttl_s=0.*greater than 0"),
        ({"store": "memory://"}, "SESSION__IDLE_TTL_S", "MCP_GATEWAY_SESSION__IDLE_TTL_S.*number"),
        ({"store": "memory://"}, "STOR", "MCP_GATEWAY_STOR: .*did you mean MCP_GATEWAY_STORE"),
    ],
    ids=["no store", "bad store", "no keys", "bad keys", "bad argument", "bad variable", "misspelt variable"],
)
def test_what_cannot_be_used_is_named(
    arguments: dict[str, Any], variable: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv(f"MCP_GATEWAY_{variable}", "soon")
    with pytest.raises(ConfigurationError, match=words):
        SessionMiddleware(None, **arguments)


def test_keys_are_the_arguments_or_the_environments_or_the_stores_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: Any = SmallBackend(None)  # type: ignore[arg-type]  # nothing asks it
    ring = KeyRing([KEY])
    assert ring_of(ring, shared) is ring
    for keys in (KEY, [KEY], (KEY, "l" * 40)):
        assert isinstance(ring_of(keys, shared), KeyRing)
    assert isinstance(ring_of(None, MemoryBackend()), KeyRing)
    with pytest.raises(ConfigurationError, match="needs keys"):
        ring_of(None, shared)
    monkeypatch.setenv("MCP_GATEWAY_KEYS", KEY)
    assert isinstance(ring_of(None, shared), KeyRing)


def test_the_memory_store_keeps_as_many_sessions_as_the_setting_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_GATEWAY_SESSION__MAX_SESSIONS", "3")
    backend = backend_of(settings_of("memory://", {}))
    assert backend.sessions._max_sessions == 3


def test_a_variable_that_is_no_setting_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MCP_GATEWAY_WEATHER", "fair")
    SessionMiddleware(None, store="memory://")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "SessionMiddleware: the variable MCP_GATEWAY_WEATHER is ignored: it is no setting")
    ]
