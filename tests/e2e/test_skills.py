"""Policy on skills: what a session may not see is in no list, no entry and no directory, and cannot be read."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, messages
from tests.support.table_server import table_server

GUIDE, SECRET = "skill://guide/SKILL.md", "skill://secret/SKILL.md"
OPEN, PRIVATE = "skill://guide/open.md", "skill://guide/private/a.md"
DIRECTORY = "resources/directory/read"
GUIDE_ENTRY = {
    "uri": GUIDE,
    "frontmatter": {"name": "guide"},
    "resources": [{"uri": u} for u in (GUIDE, OPEN, PRIVATE)],
}
TABLE: dict[str, Any] = {
    "capabilities": {"resources": {}, "extensions": {"io.modelcontextprotocol/skills": {"directoryRead": True}}},
    "answers": {
        "resources/list": {"resources": []},
        "resources/templates/list": {"resourceTemplates": []},
        "skills/list": {"skills": [GUIDE_ENTRY, {"uri": SECRET, "frontmatter": {}, "resources": "dynamic"}]},
        f"skills/get {GUIDE}": {"skill": GUIDE_ENTRY},
        "skills/get": {"skill": {"uri": "@URI", "frontmatter": {}, "resources": "dynamic"}},
        "resources/read": {"contents": [{"uri": "@URI", "text": "x"}]},
        DIRECTORY: {"resources": [{"uri": u, "name": u} for u in (OPEN, "skill://guide/private")]},
    },
}
HIDDEN = {uri: {"permissions": ["ops"]} for uri in ("skill://secret*", "skill://guide/private*")}
OTHER = {
    "capabilities": {"resources": {}},
    "answers": {"*/list": {"resources": [], "skills": [], "resourceTemplates": []}},
}

Call = Callable[..., Any]


def caller(url: str, era: str, http: httpx.Client) -> Call:
    """A client of that era; what it calls returns the result, or the code of the error."""
    legacy = Legacy(url, http).open() if era == "legacy" else None

    def call(method: str, **params: Any) -> Any:
        sent = legacy.call(method, params) if legacy is not None else Modern(url, http).send(method, params)
        answer = messages(sent)[-1]
        return answer["result"] if "result" in answer else answer["error"]["code"]

    return call


def uris(items: Any) -> list[str]:
    return [item["uri"] for item in items]


@requirement("spec.skills", "wall.uri")
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("theirs", ["legacy", "modern"])
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_what_policy_hides_is_nowhere(era: str, theirs: str, several: bool) -> None:
    servers = {"s": table_server(TABLE | {"era": theirs}, resource_uris=HIDDEN)}
    if several:
        servers["other"] = table_server({"era": theirs, **OTHER})
    with in_process_gateway(servers) as gateway, httpx.Client(timeout=30) as http:
        call = caller(gateway.url, era, http)
        listed = call("skills/list")
        (guide,) = listed["skills"]
        assert guide["uri"] == GUIDE and uris(guide["resources"]) == [GUIDE, OPEN]
        got = call("skills/get", uri=GUIDE)
        assert got["skill"] == guide
        if (era, theirs) == ("modern", "legacy"):
            for result in (listed, got):
                assert (result["cacheScope"], result["ttlMs"]) == ("private", 0)
        read = call(DIRECTORY, uri="skill://guide")
        assert uris(read["resources"]) == [OPEN]
        kind = "complete" if era == "modern" else None
        assert {result.get("resultType") for result in (listed, got, read)} == {kind}
        for uri in (GUIDE, OPEN):
            assert uris(call("resources/read", uri=uri)["contents"]) == [uri], "of a skill that is listed"
        missing = -32002 if era == "legacy" else -32602
        ways = ("skill://guide/../secret/SKILL.md", "skill://guide/%70rivate/a.md", "skill://s__/guide/private/a.md")
        for uri in (SECRET, PRIVATE, "skill://none/SKILL.md", *ways):
            assert (call("skills/get", uri=uri), call("resources/read", uri=uri)) == (-32602, missing), uri
        for uri in ("skill://guide/private", "skill://secret"):
            assert call(DIRECTORY, uri=uri) == -32602


@requirement("spec.skills")
def test_what_patterns_for_methods_deny_stays_denied() -> None:
    denied = table_server(TABLE, methods={"skills/*": {"allowed": False}})
    with in_process_gateway({"s": denied}) as gateway, httpx.Client(timeout=30) as http:
        call = caller(gateway.url, "legacy", http)
        assert call("skills/list") == call("skills/get", uri=GUIDE) == -32601
        assert uris(call("resources/read", uri=OPEN)["contents"]) == [OPEN]
    answers = {pattern: answer for pattern, answer in TABLE["answers"].items() if pattern != "skills/get"}
    other = table_server(TABLE | {"answers": answers})
    with in_process_gateway({"s": denied, "t": other}) as gateway, httpx.Client(timeout=30) as http:
        call = caller(gateway.url, "legacy", http)
        assert uris(call("skills/list")["skills"]) == [GUIDE, SECRET]
        assert call("skills/get", uri="skill://s__/guide/SKILL.md") == -32602
        assert call("skills/get", uri=GUIDE)["skill"]["uri"] == GUIDE


@requirement("spec.skills")
def test_a_server_that_has_not_declared_it_gets_no_method_of_the_extension() -> None:
    for servers in ({"s": OTHER}, {"s": OTHER, "t": OTHER}):
        entries = {name: table_server(table) for name, table in servers.items()}
        with in_process_gateway(entries) as gateway, httpx.Client(timeout=30) as http:
            call = caller(gateway.url, "legacy", http)
            found = call("skills/list")
            assert found == -32601 if len(servers) == 1 else found["skills"] == []
            assert call("skills/get", uri=GUIDE) == (-32601 if len(servers) == 1 else -32602)
