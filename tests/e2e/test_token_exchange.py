"""Each server acts with a token of its session's client, which an authorization server gives in exchange (RFC 8693)."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from tests.requirements import requirement
from tests.support.consenting_server import consenting_server
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import PROBE, replicas, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.issuer import ASSERTING_CLIENT, Issuer, running_issuer
from tests.support.mcp_clients import Legacy, Modern, error_of, tool_text
from tests.support.redis_server import RunningRedis
from tests.support.scripted_http_server import HttpProbe, running_http_probe
from tests.support.waiting import eventually

AUDIENCE = "https://files.example"


@pytest.fixture
def own_issuer() -> Iterator[Issuer]:
    """An issuer that a test counts the requests of."""
    with running_issuer() as issuer:
        yield issuer


def settings(issuer: Issuer, folder: Path, **more: Any) -> dict[str, Any]:
    """The settings of a gateway that exchanges tokens of the issuer, at the issuer."""
    secret = folder / "client-secret"
    secret.write_text("client secret\n")
    exchange = {
        "token_endpoint": f"{issuer.url}/token",
        "client_id": "gateway",
        "client_secret_file": str(secret),
        "audience": AUDIENCE,
    }
    return {"auth": issuer.settings(), "secrets": {"files": {"exchange": exchange}}, **more}


def servers(remote: HttpProbe) -> dict[str, Any]:
    """A server behind a URL and a child process, which both get the token."""
    return {
        "remote": {"url": remote.url, "headers": {"Authorization": "Bearer ${secret:files}"}},
        "local": server(PROBE, env={"TOKEN": "${secret:files}"}),
    }


def subject_of(token: str) -> tuple[str, str]:
    """Whom a token names, and for which server it is."""
    claims = jwt.decode(token, options={"verify_signature": False})
    return claims["sub"], claims["aud"]


def last_token(remote: HttpProbe) -> str:
    """The token of the last request that the server got."""
    return remote.headers[-1]["authorization"].removeprefix("Bearer ")


@requirement("cred.exchange", "ops.redact")
def test_each_server_acts_for_the_person_of_its_session_and_for_nobody_else(
    own_issuer: Issuer, http: httpx.Client, tmp_path: Path
) -> None:
    people = {name: own_issuer.token(name) for name in ("ada", "ben")}
    database = tmp_path / "sessions.db"
    more = {"store": f"sqlite:///{database}", "log_level": "debug", "api_keys": {"alice": sha256(KEYS["alice"])}}
    options = settings(own_issuer, tmp_path, **more)
    with running_http_probe() as remote, in_process_gateway(servers(remote), options=options) as gateway:

        def work(name: str) -> None:
            with httpx.Client(timeout=60) as own:
                urls = [f"{gateway.base}/servers/{each}/mcp" for each in ("remote", "local")]
                far, near = (Legacy(url, own, headers=bearer(people[name])).open() for url in urls)
                for _ in range(20):
                    assert tool_text(far.tool("echo", {"text": name}))
                modern = Modern(urls[1], own, headers=bearer(people[name]))
                for client in (near, modern):
                    token = json.loads(tool_text(client.tool("env", {"prefix": "TOKEN"})))["TOKEN"]
                    assert subject_of(token) == (name, AUDIENCE)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, [*people] * 2))
        whose: dict[str, tuple[str, str]] = {}
        for seen in remote.seen:
            if (seen.body or {}).get("method") == "tools/call":
                who = subject_of(seen.headers["authorization"].removeprefix("Bearer "))
                assert whose.setdefault(seen.headers["mcp-session-id"], who) == who
        assert sorted(whose.values()) == sorted((name, AUDIENCE) for name in [*people] * 2)
        assert sorted(own_issuer.exchanged) == sorted(people.values()), "once for each token, whoever asks at once"
        keyed = error_of(Modern(f"{gateway.base}/servers/local/mcp", http, headers=bearer(KEYS["alice"])).tool("env"))
        assert "no credential 'files'" in keyed["message"] and "access token" in keyed["message"]
        told = gateway.stderr() + database.read_bytes().decode("latin-1")
    secrets = {headers.get("authorization", "").removeprefix("Bearer ") for headers in remote.headers} - {""}
    assert not any(secret in told for secret in (*people.values(), *secrets, "client secret"))


@requirement("cred.exchange")
def test_a_token_is_exchanged_anew_before_it_expires_and_with_the_clients_latest(
    own_issuer: Issuer, http: httpx.Client, tmp_path: Path
) -> None:
    own_issuer.lives_s = 2
    first, second = own_issuer.token("ada"), own_issuer.token("ada", jti="second")
    with (
        running_http_probe() as remote,
        in_process_gateway(servers(remote), options=settings(own_issuer, tmp_path)) as gateway,
    ):
        client = Legacy(f"{gateway.base}/servers/remote/mcp", http, headers=bearer(first)).open()
        assert tool_text(client.tool("count")) == "1"
        before = last_token(remote)

        def is_new() -> bool:
            client.tool("count")
            return last_token(remote) != before

        assert eventually(is_new), "the link stays, and its token is another"
        assert {*own_issuer.exchanged} == {first} and len([calls for calls in remote.sessions.values() if calls]) == 1
        client.headers = bearer(second)
        assert eventually(lambda: is_new() and own_issuer.exchanged[-1] == second)
        calls, exchanges = len(remote.executed), len(own_issuer.exchanged)
        for _ in range(50):
            client.tool("count")
        assert len(remote.executed) == calls + 50 and len(own_issuer.exchanged) - exchanges <= 3


@requirement("cred.exchange")
def test_what_the_authorization_server_refuses_is_not_sent_and_the_client_is_told_why(
    own_issuer: Issuer, http: httpx.Client, tmp_path: Path
) -> None:
    own_issuer.lives_s = 1
    token, other = own_issuer.token("ada"), own_issuer.token("ben")
    with (
        running_http_probe() as remote,
        in_process_gateway(servers(remote), options=settings(own_issuer, tmp_path)) as gateway,
    ):
        client = Legacy(f"{gateway.base}/servers/remote/mcp", http, headers=bearer(token)).open()
        assert tool_text(client.tool("count")) == "1"
        own_issuer.revoked.add(token)
        refused: list[dict[str, Any]] = []

        def is_refused() -> bool:
            answer = client.tool("count").json()
            refused.extend([answer["error"]] if "error" in answer else [])
            return bool(refused)

        assert eventually(is_refused)
        assert "no credential 'files'" in refused[0]["message"] and "invalid_grant" in refused[0]["message"]
        assert "unknown" not in refused[0]["message"] and token not in str(refused)
        calls = len(remote.executed)
        assert "error" in client.tool("count").json() and len(remote.executed) == calls
        asked = len(own_issuer.exchanged)
        for _ in range(20):
            client.tool("count")
        assert len(own_issuer.exchanged) <= asked + 1, "it is not asked with each call"
        theirs = Legacy(f"{gateway.base}/servers/remote/mcp", http, headers=bearer(other)).open()
        assert tool_text(theirs.tool("count")) == "1"


@requirement("cred.exchange")
@pytest.mark.parametrize("more", [{"scope": "mcp admin"}, {"groups": ["admins"]}], ids=["scope", "another claim"])
def test_a_token_does_not_act_with_the_rights_of_another_of_the_same_person(
    more: Any, own_issuer: Issuer, tmp_path: Path
) -> None:
    strong, weak = own_issuer.token("ada", **more), own_issuer.token("ada")

    def used(token: str) -> str:
        """The client's token that this one was given for."""
        return own_issuer.exchanged[int(jwt.decode(token, options={"verify_signature": False})["jti"]) - 1]

    with (
        running_http_probe() as remote,
        in_process_gateway(servers(remote), options=settings(own_issuer, tmp_path)) as gateway,
        httpx.Client(timeout=60) as one,
        httpx.Client(timeout=60) as other,
    ):
        for server_name in ("remote", "local"):
            first = Legacy(f"{gateway.base}/servers/{server_name}/mcp", one, headers=bearer(weak)).open()
            second = Legacy(first.url, other, headers=bearer(strong))
            second.session = first.session
            for client, token in [(first, weak), (second, strong)] * 3:
                for _ in range(8):  # most of them take the fast path
                    if server_name == "remote":
                        assert tool_text(client.tool("count"))
                        assert used(last_token(remote)) == token
                    else:
                        assert used(json.loads(tool_text(client.tool("env", {"prefix": "TOKEN"})))["TOKEN"]) == token


@requirement("cred.exchange", "rep.any")
def test_the_owner_of_a_session_acts_with_the_token_that_another_replica_was_sent(
    own_issuer: Issuer, http: httpx.Client, redis_server: RunningRedis, tmp_path: Path
) -> None:
    own_issuer.lives_s = 1
    first, second = own_issuer.token("ada"), own_issuer.token("ada", jti="second")
    with (
        running_http_probe() as remote,
        replicas(redis_server.url, servers(remote), **settings(own_issuer, tmp_path)) as (one, two),
    ):
        client = Legacy(f"{one.base}/servers/remote/mcp", http, headers=bearer(first)).open()
        assert tool_text(client.tool("count")) == "1"
        client.url = f"{two.base}/servers/remote/mcp"
        assert tool_text(client.tool("count")) == "2", "by way of the other replica"
        client.headers = bearer(second)

        def is_second() -> bool:
            client.tool("count")
            return own_issuer.exchanged[-1] == second

        assert eventually(is_second)
        assert len([calls for calls in remote.sessions.values() if calls]) == 1
        assert subject_of(last_token(remote)) == ("ada", AUDIENCE)


@requirement("cred.id-jag", "ops.redact")
def test_a_server_acts_for_whom_the_identity_provider_names_to_its_own_authorization_server(
    own_issuer: Issuer, http: httpx.Client, tmp_path: Path
) -> None:
    people = {name: own_issuer.token(name) for name in ("ada", "ben")}
    options = settings(own_issuer, tmp_path, log_level="debug")
    (secret := tmp_path / "other-secret").write_text("another secret")
    with consenting_server() as files:
        files.trust(own_issuer, "another secret")
        second = {
            "token_endpoint": f"{files.base}/token",
            "client_id": ASSERTING_CLIENT,
            "client_secret_file": str(secret),
        }
        options["secrets"]["files"]["exchange"] |= {"audience": files.base, "resource": files.url, "id_jag": second}
        remote = {"url": files.url, "headers": {"Authorization": "Bearer ${secret:files}"}}
        local = server(PROBE, env={"TOKEN": "${secret:files}"})
        with in_process_gateway({"remote": remote, "local": local}, options=options) as gateway:

            def work(name: str) -> None:
                with httpx.Client(timeout=60) as own:
                    far, near = (f"{gateway.base}/servers/{each}/mcp" for each in ("remote", "local"))
                    for url in (far, near):
                        legacy = Legacy(url, own, headers=bearer(people[name])).open()
                        for client in (legacy, Modern(url, own, headers=bearer(people[name]))) * 5:
                            if url == far:
                                assert tool_text(client.tool("whoami")) == name
                            else:
                                token = json.loads(tool_text(client.tool("env", {"prefix": "TOKEN"})))["TOKEN"]
                                assert files.access[token].subject == name

            with ThreadPoolExecutor(4) as pool:
                list(pool.map(work, [*people] * 2))
            assert sorted(files.calls) == ["ada"] * 20 + ["ben"] * 20
            assert sorted(own_issuer.exchanged) == sorted(people.values()) and sorted(files.asserted) == ["ada", "ben"]
            files.lives_s = 2
            token = own_issuer.token("ada", jti="another")
            client = Legacy(f"{gateway.base}/servers/remote/mcp", http, headers=bearer(token)).open()
            asked = len(files.asserted)
            assert eventually(lambda: tool_text(client.tool("whoami")) == "ada" and len(files.asserted) > asked)
            own_issuer.revoked.add(token)
            refused: list[str] = []

            def is_refused() -> bool:
                answer = client.tool("whoami").json()
                refused.extend([answer["error"]["message"]] if "error" in answer else [])
                return bool(refused)

            assert eventually(is_refused) and "invalid_grant" in refused[0] and token not in refused[0]
            calls, asked = len(files.calls), len(own_issuer.exchanged)
            for _ in range(20):
                assert "error" in client.tool("whoami").json()
            assert len(files.calls) == calls and len(own_issuer.exchanged) <= asked + 1
            told = gateway.stderr()
    secrets = ("client secret", "another secret", "another%20secret", *people.values(), token, *files.access)
    assert not any(each in told for each in secrets)
