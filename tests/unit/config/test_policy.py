"""Settings of principals, issuers and secrets that contradict each other are refused."""

from typing import Any

import pytest

from gateway.config.settings import Settings
from tests.requirements import requirement
from tests.unit.config.conftest import Refusal

JWT = {"issuer": "https://id.example", "audience": "a", "jwks_url": "https://id.example/keys"}
PROXIES = {"networks": ["10.0.0.0/8"], "subject_header": "X-User"}


@requirement("ctx.credentials", "ops.config")
def test_what_cannot_be_is_said_at_start(refusal: Refusal) -> None:
    secret = {"word": {"env": "WORD"}}
    for entry, secrets, words in (
        ({"command": "x", "env": {"T": "${secret:word}"}}, {}, "has no entry 'word'"),
        ({"command": "x", "shared": True, "env": {"T": "${secret:word}"}}, secret, "a shared server gets no secrets"),
        ({"command": "x"}, {"word": {}}, "give exactly one of file, env, command, exchange and consent"),
        ({"command": "x"}, {"word": {"env": "{subject}_TOKEN"}}, "other variables of the gateway"),
        (
            {"command": "x"},
            {"word": {"consent": {"resource": "https://a.example/mcp", "client_id": "known"}}},
            "client_id needs issuer",
        ),
        ({"command": "x"}, {"word": {"env": "W", "issuer": "nobody"}}, "issuer is 'nobody'"),
    ):
        assert words in refusal({"mcpServers": {"a": entry}, "gateway": {"secrets": secrets}})


@requirement("cred.refresh", "ops.config")
@pytest.mark.parametrize(
    ("entry", "rule", "what"),
    [
        ({"url": "https://a.example/mcp", "headers": {"X": "${secret_file:word}"}}, {}, "headers: .* use secret"),
        ({"url": "https://a.example/mcp", "env": {"T": "${secret_file:word}"}}, {}, "neither shared nor warm"),
        ({"command": "x", "shared": True, "env": {"T": "${secret_file:word}"}}, {}, "a shared server gets no secrets"),
        ({"command": "x", "shared": True, "env": {"T": "$${secret:word}"}}, {}, "a shared server gets no secrets"),
        *(
            ({"command": "x", "env": {"T": text}}, {}, "T: write .*, with a name from gateway.secrets")
            for text in ("${secret_file:word", "${secret:a b}", "x ${secret:}", "${secret_file:${secret:word}}")
        ),
        ({"command": "x"}, {"env": {"T": "${secret:word"}}, "T: write .*, with a name from gateway.secrets"),
        ({"command": "x", "warm": 1, "env": {"T": "--at=${secret_file:word}"}}, {}, "neither shared nor warm"),
        ({"command": "x", "env": {"T": "${secret_file:other}"}}, {}, "has no entry 'other'"),
        ({"command": "x"}, {"env": {"T": "${secret_file:word}"}}, "only be in the env of a server"),
        ({"command": "x"}, {"server_env": {"a": {"T": "${secret_file:word}"}}}, "only be in the env of a server"),
    ],
)
def test_a_file_belongs_to_the_process_of_one_session(entry: Any, rule: Any, what: str) -> None:
    gateway = {"secrets": {"word": {"env": "WORD"}}}
    Settings.model_validate(
        {"mcpServers": {"a": {"command": "x", "env": {"T": "${secret_file:word}"}}}, "gateway": gateway}
    )
    with pytest.raises(ValueError, match=what):
        Settings.model_validate({"mcpServers": {"a": entry}, "gateway": {**gateway, "policy": {"rules": [rule]}}})


@requirement("wall.secrets")
def test_the_name_of_a_secret_is_one_that_a_placeholder_can_have() -> None:
    for name in ("a b", "", "a}", "ä"):
        with pytest.raises(ValueError, match=f"secrets: {name!r}: a name has only letters, digits"):
            Settings.model_validate({"gateway": {"secrets": {name: {"env": "WORD"}}}})
    assert Settings.model_validate({"gateway": {"secrets": {"A_b.c-1": {"env": "WORD"}}}})


@requirement("wall.secrets", "ops.config")
def test_whose_secrets_are_is_said_at_start() -> None:
    keys: dict[str, Any] = {"api_keys": {"alice": "0" * 64}}
    issued, proxied = {"auth": {"jwt": [JWT]}}, {"auth": {"proxies": PROXIES}}

    def give(gateway: dict[str, Any], **secret: str) -> None:
        Settings.model_validate({"gateway": {**gateway, "secrets": {"word": secret}}})

    for alone in (keys, issued, proxied):
        give(alone, file="/run/{subject}")
    for several in (keys | issued, keys | proxied):
        with pytest.raises(ValueError, match="set issuer, or put"):
            give(several, file="/run/{subject}")
        give(several, file="/run/{issuer}/{subject}")
        give(several, file="/run/{subject}", issuer="api-key")


@requirement("cred.exchange", "ops.config")
def test_where_tokens_may_be_sent_is_said_at_start() -> None:
    other = JWT | {"issuer": "https://other.example"}
    good = {"token_endpoint": "https://id.example/token", "client_id": "gateway"}

    def give(exchange: dict[str, Any], *jwt: dict[str, str], issuer: str = "", **entry: Any) -> None:
        secrets = {"word": {"exchange": exchange, "issuer": issuer}}
        server = {"command": "x", "env": {"T": "${secret:word}"}, **entry}
        gateway = {"auth": {"jwt": jwt}, "secrets": secrets, "api_keys": {"alice": "0" * 64}}
        Settings.model_validate({"mcpServers": {"a": server}, "gateway": gateway})

    give(good, JWT)
    give(good, JWT, other, issuer="https://other.example")
    give(good | {"token_endpoint": "http://127.0.0.1:1/token"}, JWT)
    for jwt, issuer in (([], ""), ([JWT, other], ""), ([JWT], "api-key")):
        with pytest.raises(ValueError, match="set issuer to one of"):
            give(good, *jwt, issuer=issuer)
    for url in ("http://id.example/token", "https://", "https://id:99999/", "https://me:pw@id.example/", "ftp://id/"):
        with pytest.raises(ValueError, match="token_endpoint"):
            give(good | {"token_endpoint": url}, JWT)
    with pytest.raises(ValueError, match="client_id"):
        give(good | {"client_id": ""}, JWT)
    with pytest.raises(ValueError, match="remove warm"):
        give(good, JWT, warm=2)


@requirement("wall.secrets", "wall.authority")
@pytest.mark.parametrize(
    "issuers", [["api-key"], ["anonymous"], ["proxy"], ["https://id.example", "https://id.example:8443"]]
)
def test_issuers_whose_principals_could_be_confused_are_refused(issuers: list[str]) -> None:
    auth = {"jwt": [JWT | {"issuer": name} for name in issuers], "proxies": PROXIES}
    with pytest.raises(ValueError, match="could give two principals the same name"):
        Settings.model_validate({"gateway": {"auth": auth}})
