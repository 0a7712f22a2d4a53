"""Each server acts with a token to which the person of its session has consented, at the server's own authorization
server."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.requirements import requirement
from tests.support.consenting_server import ConsentingServer, Person, consenting_server
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.free_ports import free_port
from tests.support.gateway_process import PROBE, replicas
from tests.support.gateway_process import server as command
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, error_of, result_of, tool_text
from tests.support.redis_server import RunningRedis

URLS: Any = {"elicitation": {"url": {}}}
OPERATOR = "operator-key"


@pytest.fixture
def server() -> Iterator[ConsentingServer]:
    """A server that only serves who has consented."""
    with consenting_server() as running:
        yield running


def settings(server: ConsentingServer, **more: Any) -> dict[str, Any]:
    """The settings of a gateway on whose pages people consent."""
    port = free_port()
    return {
        "port": port,
        "public_url": f"http://127.0.0.1:{port}",
        "api_keys": {name: sha256(KEYS[name]) for name in ("alice", "bob")},
        "secrets": {"files": {"consent": {"resource": server.url}}},
        "admin": {"keys": {"ops": sha256(OPERATOR)}},
        **more,
    }


def servers(server: ConsentingServer) -> dict[str, Any]:
    """The server behind its URL, and a child process that gets the same token."""
    return {
        "files": {"url": server.url, "headers": {"Authorization": "Bearer ${secret:files}"}},
        "local": command(PROBE, env={"TOKEN": "${secret:files}"}),
    }


def unpooled() -> httpx.Client:
    """A client that need not be closed, because it keeps no connection."""
    return httpx.Client(timeout=60, headers={"Connection": "close"})


def legacy(base: str, http: httpx.Client, who: str, name: str = "files") -> Legacy:
    """A legacy client of one server, which can ask its person to open a URL."""
    url = f"{base}/servers/{name}/mcp"
    return Legacy(url, http, headers=bearer(KEYS[who])).open(capabilities=URLS)


def link_for(client: Legacy, tool: str = "whoami") -> str:
    """The link that a client gets in place of a result."""
    error = error_of(client.tool(tool))
    assert (error["code"], error["data"]["reason"]) == (-32042, "consent_needed"), error
    (asked,) = error["data"]["elicitations"]
    assert asked["mode"] == "url" and asked["elicitationId"] and asked["url"] in error["message"]
    return str(asked["url"])


@requirement("cred.consent", "ops.redact")
def test_a_server_acts_for_who_has_consented_and_for_nobody_else(
    server: ConsentingServer, http: httpx.Client, tmp_path: Path
) -> None:
    database = tmp_path / "sessions.db"
    options = settings(server, store=f"sqlite:///{database}", log_level="debug")
    with in_process_gateway(servers(server), options=options) as gateway, httpx.Client(timeout=60) as other:
        alice = legacy(gateway.base, http, "alice")
        assert Person("ada", KEYS["alice"]).connect(link_for(alice)).status_code == 200
        assert tool_text(alice.tool("whoami")) == "ada" and server.calls == ["ada"], "nothing was sent before"
        bob = Modern(alice.url, other, headers=bearer(KEYS["bob"]))
        plain = error_of(bob.tool("whoami"))
        assert plain["code"] == -32013 and plain["data"]["url"] in plain["message"], "it cannot ask for URLs"
        meta = {"io.modelcontextprotocol/clientCapabilities": URLS}
        asked = result_of(bob.tool("whoami", meta=meta))
        assert asked["resultType"] == "input_required"
        ((key, question),) = asked["inputRequests"].items()
        assert question["method"] == "elicitation/create" and question["params"]["mode"] == "url"

        def again() -> httpx.Response:
            answers = {"requestState": asked["requestState"], "inputResponses": {key: {"action": "accept"}}}
            return bob.send("tools/call", {"name": "whoami", "arguments": {}, **answers}, meta=meta)

        assert error_of(again())["data"]["reason"] == "consent_needed", "it has been shown, and is not asked on and on"
        assert Person("ben", KEYS["bob"]).connect(question["params"]["url"]).status_code == 200
        assert tool_text(again()) == "ben"
        child = Legacy(f"{gateway.base}/servers/local/mcp", http, headers=bearer(KEYS["alice"])).open()
        token = json.loads(tool_text(child.tool("env", {"prefix": "TOKEN"})))["TOKEN"]
        assert server.access[token].subject == "ada"

        def work(client: Any, name: str) -> None:
            for _ in range(30):
                assert tool_text(client.tool("whoami")) == name

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, (alice, bob), ("ada", "ben")))
        told = gateway.stderr() + "".join(f.read_bytes().decode("latin-1") for f in tmp_path.glob("sessions.db*"))
    assert not any(token in told for token in (*server.access, *server.refresh)), "neither logged nor stored plainly"


@requirement("cred.consent")
def test_somebody_elses_link_gives_nothing_at_the_gateway_or_at_the_authorization_server(
    server: ConsentingServer, http: httpx.Client
) -> None:
    with in_process_gateway(servers(server), options=settings(server)) as gateway:
        alice = legacy(gateway.base, http, "alice")
        link, ada, ben = link_for(alice), Person("ada", KEYS["alice"]), Person("ben", KEYS["bob"])
        assert "password" in ben.browser.get(link).text and ben.browser.post(link).status_code == 401
        assert Person("ben", "no key").open(link).status_code == 401
        assert ben.open(link).status_code == 403 and "somebody else" in ben.open(link).text
        foreign = {"Sec-Fetch-Site": "cross-site"}
        assert ada.browser.post(link, data={"credential": ada.key}, headers=foreign).status_code == 403
        assert ada.browser.get(f"{link[:-2]}AA").status_code == 404
        assert not server.asked, "none of them has come to the authorization server"

        begun = ada.open(link)
        assert begun.status_code == 303
        back = ben.log_in(begun).headers["location"]  # she has sent him on: he consents for her
        answer = ben.browser.get(back)
        assert answer.status_code == 400 and "another browser" in answer.text and not server.access
        assert link_for(alice) and ada.browser.get(back).status_code == 200, "her own browser may end it, once"
        assert ada.browser.get(back).status_code == 400
        assert tool_text(alice.tool("whoami")) == "ben", "she was the one who consented, with an account of his"
        bob = legacy(gateway.base, unpooled(), "bob")
        assert link_for(bob) and server.calls == ["ben"]


@requirement("cred.consent")
def test_a_proxy_that_names_people_spares_them_to_prove_it(server: ConsentingServer, http: httpx.Client) -> None:
    proxies = {"networks": ["127.0.0.1"], "subject_header": "X-User", "issuer": "sso"}
    options = settings(server, auth={"proxies": proxies})
    with in_process_gateway(servers(server), options=options) as gateway:
        alice = Legacy(f"{gateway.base}/servers/files/mcp", http, headers={"X-User": "alice"}).open(capabilities=URLS)
        link = link_for(alice)
        ben = Person("ben", KEYS["bob"], user="bob")
        assert ben.browser.get(link).status_code == 403 and ben.browser.post(link).status_code == 403
        ada = Person("ada", user="alice")
        page = ada.browser.get(link)
        assert "password" not in page.text and "sso:alice" in page.text and server.url in page.text
        assert ada.connect(link).status_code == 200 and tool_text(alice.tool("whoami")) == "ada"


@requirement("cred.consent")
def test_what_comes_back_wrong_connects_nobody(server: ConsentingServer, http: httpx.Client) -> None:
    with in_process_gateway(servers(server), options=settings(server)) as gateway:
        alice, ada = legacy(gateway.base, http, "alice"), Person("ada", KEYS["alice"])
        refused = Person("", KEYS["alice"]).connect(link_for(alice))
        assert refused.status_code == 400 and "you have not consented" in refused.text
        server.issuer = "http://127.0.0.1:1"
        mixed = ada.connect(link_for(alice))
        assert mixed.status_code == 400 and "another authorization server" in mixed.text
        server.issuer = server.base
        back = ada.log_in(ada.open(link_for(alice))).headers["location"]
        code = parse_qs(urlsplit(back).query)["code"][0]
        server.codes.clear()
        assert "invalid_grant" in ada.browser.get(back).text and code not in gateway.stderr()
        assert link_for(alice) and not server.access and not server.calls


@requirement("cred.consent", "rep.any")
def test_a_token_is_refreshed_once_for_each_expiry_whichever_replica_needs_it(
    server: ConsentingServer, redis_server: RunningRedis
) -> None:
    server.lives_s = 2
    options = settings(server)
    del options["port"]
    with replicas(redis_server.url, servers(server), **options) as (one, two):
        with httpx.Client(timeout=60) as http:
            alice, ada = legacy(one.base, http, "alice"), Person("ada", KEYS["alice"])
            path = urlsplit(link_for(alice)).path
            back = urlsplit(ada.log_in(ada.open(two.base + path)).headers["location"])
            assert ada.browser.get(f"{one.base}{back.path}?{back.query}").status_code == 200, "any replica takes it"

        def work(number: int) -> set[str]:
            seen = set[str]()
            with httpx.Client(timeout=60) as own:
                client = legacy((one, two)[number % 2].base, own, "alice")
                while len(server.refreshed) < 3:
                    assert tool_text(client.tool("whoami")) == "ada"
                    seen.add("ada")
            return seen

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(work, range(4))) == [{"ada"}] * 4
        given = [token for token in server.access if token.startswith("access-ada")]
        assert len(given) == 1 + len(server.refreshed), "a refresh token is used once: nobody was refused"
        assert 3 <= len(server.refreshed) <= 4
        stored = " ".join(f"{server!r}" for server in redis_server.client().scan_iter())
    assert not any(token in stored for token in server.access)


@requirement("cred.consent")
def test_what_an_operator_revokes_is_refused_at_once(server: ConsentingServer, http: httpx.Client) -> None:
    with in_process_gateway(servers(server), options=settings(server)) as gateway:
        people = {"alice": "ada", "bob": "ben"}
        clients = {who: legacy(gateway.base, unpooled(), who) for who in people}
        for who, account in people.items():
            assert Person(account, KEYS[who]).connect(link_for(clients[who])).status_code == 200
            assert tool_text(clients[who].tool("whoami")) == account
        admin, key = f"{gateway.base}/admin/api/credentials", bearer(OPERATOR)
        rows = http.get(admin, headers=key).json()["credentials"]
        assert [(row["principal"], row["secret"], row["resource"]) for row in rows] == [
            ("api-key:alice", "files", server.url),
            ("api-key:bob", "files", server.url),
        ]
        assert not any(token in json.dumps(rows) for token in (*server.access, *server.refresh))
        assert http.get(admin).status_code == 401 and http.delete(admin, headers=key).status_code == 400
        calls = len(server.calls)
        assert http.delete(admin, params={"principal": "api-key:alice"}, headers=key).json() == {"revoked": 1}
        assert link_for(clients["alice"]) and len(server.calls) == calls
        assert tool_text(clients["bob"].tool("whoami")) == "ben"
        assert "has revoked 1 credentials" in gateway.stderr()
        assert "an account was connected for the secret 'files'" in gateway.stderr(), "it is in the audit trail"
        assert Person("ada", KEYS["alice"]).connect(link_for(clients["alice"])).status_code == 200
        assert tool_text(clients["alice"].tool("whoami")) == "ada", "and may be given again"
