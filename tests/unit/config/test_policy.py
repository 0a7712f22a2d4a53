"""Settings of principals, issuers and secrets that contradict each other are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config.settings import ConfigurationError, Settings, load
from tests.requirements import requirement


@requirement("ctx.credentials", "ops.config")
def test_what_cannot_be_is_said_at_start(tmp_path: Path) -> None:
    secret = {"word": {"env": "WORD"}}
    for entry, secrets, words in (
        ({"command": "x", "env": {"T": "${secret:word}"}}, {}, "has no entry 'word'"),
        ({"command": "x", "shared": True, "env": {"T": "${secret:word}"}}, secret, "a shared server gets no secrets"),
        ({"command": "x"}, {"word": {}}, "give exactly one of file, env and command"),
        ({"command": "x"}, {"word": {"env": "{subject}_TOKEN"}}, "other variables of the gateway"),
        ({"command": "x"}, {"word": {"env": "W", "issuer": "nobody"}}, "issuer is 'nobody'"),
    ):
        config = tmp_path / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"a": entry}, "gateway": {"secrets": secrets}}))
        with pytest.raises(ConfigurationError, match=words):
            load(config)


@requirement("wall.secrets", "ops.config")
def test_whose_secrets_are_is_said_at_start() -> None:
    jwt = {"issuer": "https://id.example", "audience": "a", "jwks_url": "https://id.example/keys"}
    keys = {"alice": "0" * 64}
    both: dict[str, Any] = {"api_keys": keys, "auth": {"jwt": [jwt]}}
    proxied = {"auth": {"proxies": {"networks": ["10.0.0.0/8"], "subject_header": "X-User"}}}

    def load(**gateway: Any) -> None:
        Settings.model_validate({"gateway": gateway})

    personal = {"word": {"file": "/run/{subject}"}}
    for alone in ({"api_keys": keys}, {"auth": {"jwt": [jwt]}}, proxied):
        load(**alone, secrets=personal)
    for several in (both, {**proxied, "api_keys": keys}):
        with pytest.raises(ValueError, match="set issuer, or put"):
            load(**several, secrets=personal)
        load(**several, secrets={"word": {"file": "/run/{issuer}/{subject}"}})
        load(**several, secrets={"word": {"file": "/run/{subject}", "issuer": "api-key"}})


@requirement("wall.secrets", "wall.authority")
@pytest.mark.parametrize(
    "issuers", [["api-key"], ["anonymous"], ["proxy"], ["https://id.example", "https://id.example:8443"]]
)
def test_issuers_whose_principals_could_be_confused_are_refused(issuers: list[str]) -> None:
    jwt = [{"issuer": name, "audience": "a", "jwks_url": "https://id.example/keys"} for name in issuers]
    proxies = {"networks": ["10.0.0.0/8"], "subject_header": "X-User"}
    with pytest.raises(ValueError, match="could give two principals the same name"):
        Settings.model_validate({"gateway": {"auth": {"jwt": jwt, "proxies": proxies}}})
