"""Several servers behind one URL: one list of all their items, and the server of each request."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gateway.config.policy import PolicySettings
from gateway.config.upstreams import ItemSettings, UpstreamSettings
from gateway.policy.access_policy import Policy
from gateway.protocol.extensions import SKILLS as SKILL_ID
from gateway.relay.merged_servers import MergedServers
from gateway.relay.policy_admission import VisibleServers
from gateway.relay.resource_servers import InTurn
from session_store import Context
from tests.requirements import requirement
from tests.support.fake_upstream import answer_of
from tests.support.paged_server import NamedSession, PagedServer, a_call, merged, ruled
from tests.support.virtual_time import skip_waits
from transports.era import Era
from transports.inbound_port import Refused
from transports.jsonrpc import Message, encode
from transports.upstream_port import UpstreamUnavailable


def tools(*names: str, **more: Any) -> dict[str, Any]:
    return {"tools": [{"name": name} for name in names], **more}


async def listed(
    parts: MergedServers, method: str = "tools/list", *, era: Era = Era.LEGACY, **params: Any
) -> dict[str, Any]:
    """The list of all servers."""
    request = msgspec.structs.replace(a_call(method, **params), era=era)
    await parts.merged_list(request)
    return cast("dict[str, Any]", (await answer_of(request.exchange))["result"])


def names(result: dict[str, Any]) -> list[str]:
    return [tool["name"] for tool in result["tools"]]


def listing(name: str, *pages: list[str], **more: Any) -> PagedServer:
    """A server with these tools on its pages, each of which has `more` as well."""
    cursors = ["", *(str(number) for number in range(2, len(pages) + 1))]
    following = [{"nextCursor": cursor} for cursor in cursors[1:]] + [{}]
    return PagedServer(
        name,
        {
            ("tools/list", cursor): tools(*names, **after, **more)
            for cursor, names, after in zip(cursors, pages, following, strict=True)
        },
    )


async def test_the_lists_of_all_servers_are_one_list_under_public_names() -> None:
    servers = [listing("a", ["x", "y"]), listing("b", ["x"])]
    for away in ([], [PagedServer("c", None), PagedServer("d", {})]):
        result = await listed(merged(*away, *servers))
        assert names(result) == ["a__x", "a__y", "b__x"] and "nextCursor" not in result


@requirement("spec.letter")
async def test_a_list_continues_at_the_servers_that_have_more_pages_and_every_page_has_the_same_scope() -> None:
    public = {"ttlMs": 5, "cacheScope": "public", "resultType": "complete"}
    one, two = listing("a", ["x"], ["y"], **public), listing("b", ["z"], **public)
    parts = merged(one, two)
    first = await listed(parts, era=Era.MODERN)
    assert names(first) == ["a__x", "b__z"] and one.asked == [("tools/list", "")]
    rest = await listed(parts, era=Era.MODERN, cursor=first["nextCursor"])
    assert names(rest) == ["a__y"] and "nextCursor" not in rest
    assert one.asked == [("tools/list", ""), ("tools/list", "2")] and two.asked == [("tools/list", "")]
    assert first["cacheScope"] == rest["cacheScope"] == "private"
    assert (await listed(merged(two), era=Era.MODERN))["cacheScope"] == "public"
    with pytest.raises(Refused, match="Invalid cursor"):
        await listed(parts, cursor="2")


@pytest.mark.parametrize("cursor", ["again", "c" * 8_192, 7])
async def test_a_list_without_an_end_keeps_nothing_of_other_servers_from_a_client(cursor: Any) -> None:
    endless = PagedServer("a", {("tools/list", at): tools("x", nextCursor=cursor) for at in ("", "again")})
    parts = merged(endless, listing("b", ["y"], ["z"]), listing("c", ["w"]))
    first = await listed(parts)
    assert names(first) == ["a__x", "b__y", "c__w"] and len(first["nextCursor"]) <= 4_096
    rest = await listed(parts, cursor=first["nextCursor"])
    assert names(rest)[-1] == "b__z"


async def test_a_public_name_belongs_to_one_server() -> None:
    one, two = PagedServer("a", {}), PagedServer("b", {})
    parts = merged(one, two)
    upstream, request = await parts.server_for(a_call("tools/call", name="b__x"))
    assert cast("Any", upstream) is two and bytes(request.params["name"]) == b'"x"'
    for name in ("c__x", "x"):
        with pytest.raises(Refused, match="Unknown tool"):
            await parts.server_for(a_call("tools/call", name=name))
    reference = {"type": "ref/prompt", "name": "b__p"}
    upstream, request = await parts.server_for(a_call("completion/complete", ref=reference))
    assert cast("Any", upstream) is two, "that of its prompt"
    assert msgspec.json.decode(request.params["ref"]) == reference | {"name": "p"}
    with pytest.raises(Refused, match="Method not found"):
        await parts.server_for(a_call("acme/method"))


async def test_a_request_to_all_servers_is_answered_once_all_have_answered() -> None:
    one, two = PagedServer("a", {}), PagedServer("b", None)
    request = a_call("logging/setLevel", level="debug")
    await merged(one, two).send_to_all(request)
    assert one.asked == [("logging/setLevel", "")] and request.exchange.is_over


APP_TOOL = {"name": "t", "_meta": {"ui": {"resourceUri": "ui://t/app.html"}}}


LIST, TEMPLATES, READ = "resources/list", "resources/templates/list", "resources/read"


def pages(*uris: str, templates: tuple[str, ...] = (), reads: tuple[str, ...] = ()) -> dict[tuple[str, str], Any]:
    """The results of a server that lists these URIs, one on each page, and templates, and can be read at others."""
    listed: dict[tuple[str, str], Any] = {
        (LIST, str(n or "")): {"resources": [{"uri": uri}], "nextCursor": str(n + 1)} for n, uri in enumerate(uris)
    }
    listed[LIST, str(len(uris) or "")] = {"resources": []}
    listed[TEMPLATES, ""] = {"resourceTemplates": [{"uriTemplate": template} for template in templates]}
    return listed | {(READ, uri): {"contents": [{"uri": uri, "text": "x"}]} for uri in (*uris, *reads)}


async def owner(parts: MergedServers, uri: str, method: str = READ, **more: Any) -> str:
    return (await parts.resources.find(uri, a_call(method, uri=uri, **more))).upstream.name


def requests(*servers: PagedServer) -> int:
    return sum(len(server.asked) for server in servers)


@requirement("ext.resource-owner")
async def test_a_resource_on_a_later_page_is_found_and_costs_no_list_until_lists_change() -> None:
    one, two = PagedServer("a", pages("x://1")), PagedServer("b", pages("y://1", "y://2", "y://3"))
    parts = merged(one, two)
    assert await owner(parts, "y://3") == "b" and (LIST, "3") in two.asked
    asked = requests(one, two)
    assert await owner(parts, "y://3") == "b" and await owner(parts, "x://1") == "a"
    assert requests(one, two) == asked
    for each in (one, two):
        each.lists.forget("resources")
    assert await owner(parts, "y://3") == "b" and two.asked.count((LIST, "3")) == 2, "the lists have changed"
    one, two = PagedServer("a", pages()), PagedServer("b", pages("y://1"))
    parts = merged(one, two)
    await parts.merged_list(a_call(LIST))
    asked = requests(one, two)
    assert await owner(parts, "y://1") == "b" and requests(one, two) == asked, "pages that clients ask for count"


@pytest.mark.parametrize("method", ["resources/read", "resources/subscribe", "resources/unsubscribe"])
@requirement("ext.resource-owner")
async def test_a_resource_that_nobody_lists_is_looked_for_at_a_few_servers_at_a_time(method: str) -> None:
    servers = [PagedServer(name, pages(reads=("z://1",) if name != "a" else ())) for name in "abcdef"]
    one, *_, six = servers
    parts = merged(*servers)
    found = await parts.resources.find("z://1", wanted := a_call(method, uri="z://1"))
    assert found.upstream.name == "b" and (READ, "z://1") in one.asked and (READ, "z://1") not in six.asked
    assert (found.answer is not None) is (method == READ)
    assert found.answer is None or found.answer.message.result is not msgspec.UNSET
    asked = requests(one)
    again = await parts.resources.find("z://1", wanted)
    assert again.upstream.name == "b" and again.answer is None and requests(one) == asked, "it is remembered"


@pytest.mark.parametrize(
    ("one", "two", "tools", "uri", "found"),
    [
        (pages("x://1"), pages("x://1"), None, "x://1", "a"),
        (pages(reads=("db://t/9",)), pages("db://t/1", reads=("db://t/9",)), None, "db://t/9", "b"),
        (pages(templates=("f:{+path}",)), pages(templates=("f:///{name}",)), None, "f:///x", "b"),
        (pages(), pages(templates=("f:///{name}",), reads=("f:///x/y",)), None, "f:///x/y", "b"),
        (pages(), pages(), [APP_TOOL], "ui://t/app.html", "b"),
    ],
    ids=["first of the configuration", "similar URIs", "closest template", "more than its template", "app of a tool"],
)
async def test_a_server_that_is_likelier_to_have_it_is_asked_first(
    one: Any, two: Any, tools: list[Any] | None, uri: str, found: str
) -> None:
    first, second = PagedServer("a", one), PagedServer("b", two, probed=tools)
    assert await owner(merged(first, second), uri) == found
    assert (READ, uri) not in first.asked
    assert tools is None or (not first.asked and not second.asked), "no list has an app"


@pytest.mark.parametrize(("code", "found"), [(-32002, "b"), (-32602, "b"), (-32601, "b"), (0, "b"), (-32603, "a")])
async def test_what_servers_answer_for_a_missing_resource_is_not_an_answer_and_another_error_is(
    code: int, found: str
) -> None:
    one, two = PagedServer("a", pages()), PagedServer("b", pages(reads=("z://1",)))
    one.error = code
    assert await owner(merged(one, two), "z://1") == found


async def test_a_resource_that_nobody_has_is_not_found_and_servers_without_resources_are_not_asked() -> None:
    one, two = PagedServer("a", pages()), PagedServer("b", pages("y://1"))
    one.known_capabilities = {"tools": {}}
    assert await owner(merged(one, two), "y://1") == "b" and not one.asked
    parts = merged(PagedServer("a", pages()), PagedServer("b", pages()))
    with pytest.raises(Refused, match="Resource not found: z://1"):
        await owner(parts, "z://1")
    with pytest.raises(UpstreamUnavailable, match="c did not answer in time"):
        await owner(merged(PagedServer("a", pages()), PagedServer("c", None)), "z://1")


async def test_a_server_whose_resource_policy_hides_does_not_have_it() -> None:
    hidden = ruled(resource_uris={"x://*": ItemSettings(direct_only=True)})
    one, two = PagedServer("a", pages("x://1", "x://2")), PagedServer("b", pages("x://1"))
    parts = merged(one, two, policies={"a": hidden})
    assert await owner(parts, "x://1") == "a"
    assert await owner(parts, "x://1", trust="sandboxed") == "b"
    one.asked.clear()
    with pytest.raises(Refused, match="Resource not found: x://2"):
        await owner(parts, "x://2", trust="sandboxed")
    assert not one.asked, "it is not even asked"


async def test_an_unlisted_resource_is_not_looked_for_where_policy_goes_by_lists() -> None:
    restricted = ruled(resource_uris={"secret://*": ItemSettings(direct_only=True)})
    one, two = PagedServer("a", pages(reads=("z://1",))), PagedServer("b", pages())
    with pytest.raises(Refused):
        await owner(merged(one, two, policies={"a": restricted}), "z://1")
    assert (READ, "z://1") not in one.asked


async def test_of_two_servers_with_the_same_app_the_one_that_was_called_has_it() -> None:
    served = {("tools/list", ""): {"tools": [APP_TOOL]}}
    one, two = (PagedServer(name, pages() | served, probed=[APP_TOOL]) for name in "ab")
    parts, live = merged(one, two), cast("Any", NamedSession())
    await parts.merged_list(a_call("tools/list"))
    assert await owner(parts, "ui://t/app.html", live=live) == "a"
    await parts.server_for(a_call("tools/call", live=live, name="b__t"))
    assert await owner(parts, "ui://t/app.html", live=live) == "b"
    assert await owner(parts, "ui://t/app.html", live=cast("Any", NamedSession())) == "a", "in another session"


WAIT_S, WITHIN_S = 0.05, 0.4
NAMES = [f"s{n}" for n in range(9)]


class Servers:
    """Servers that have nothing, but for those named in `having`. Those in `hanging` never answer, `slow` ones once the
    last server has been asked, `gone` ones cannot be asked, and asking a `broken` one is an error of the gateway's."""

    def __init__(self, **names: str) -> None:
        self._names = names
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.all_asked = asyncio.Event()

    def _is(self, what: str, name: str) -> bool:
        return name in self._names.get(what, "").split()

    async def ask(self, name: str) -> bool:
        self.asked.append(name)
        if name == NAMES[-1]:
            self.all_asked.set()
        try:
            if self._is("hanging", name):
                await asyncio.Event().wait()
            if self._is("slow", name):
                await self.all_asked.wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        if self._is("gone", name):
            raise UpstreamUnavailable("gone")
        if self._is("broken", name):
            raise RuntimeError("full")
        return self._is("having", name)


def search(servers: Servers) -> InTurn[bool]:
    return InTurn(servers.ask, bool, wait_s=WAIT_S, within_s=WITHIN_S)


@requirement("ext.resource-owner")
async def test_the_first_is_asked_alone_and_the_others_in_groups() -> None:
    servers = Servers(having="s0 s1")
    assert await search(servers).first(NAMES) == ("s0", True) and servers.asked == ["s0"]
    servers = Servers(having="s3 s4")
    assert await search(servers).first(NAMES) == ("s3", True) and servers.asked == NAMES[:5]
    assert await search(Servers(having="s1", slow="s1")).first(NAMES) == ("s1", True), "a slow one is found still"
    servers = Servers(gone="s2")
    found = search(servers)
    assert await found.first(NAMES) is None and servers.asked == NAMES and found.late == {"s2"}
    assert await search(Servers()).first([]) is None


@requirement("ext.resource-owner")
async def test_one_that_hangs_holds_up_nobody_for_long_and_all_take_one_deadline_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = skip_waits(monkeypatch)
    servers = Servers(having="s8", hanging="s0 s2")
    found, began = search(servers), clock()
    assert await found.first(NAMES) == ("s8", True)
    assert clock() - began < WITHIN_S and servers.cancelled == ["s0", "s2"] == sorted(found.late)
    servers = Servers(hanging=" ".join(NAMES))
    found, began = search(servers), clock()
    assert await found.first(NAMES) is None
    assert clock() - began == pytest.approx(WITHIN_S) and found.late == {*NAMES} == {*servers.cancelled}


async def test_an_error_that_is_not_the_servers_ends_the_search() -> None:
    servers = Servers(broken="s1")
    with pytest.raises(RuntimeError, match="full"):
        await search(servers).first(NAMES)
    assert "s5" not in servers.asked


SANDBOXED, DIRECT = Context(trust="sandboxed"), Context(trust="direct")


def visible(**servers: UpstreamSettings) -> VisibleServers:
    upstreams = cast("Any", [SimpleNamespace(name=name) for name in servers])
    return VisibleServers(upstreams, Policy(PolicySettings(), servers))


def test_a_server_for_direct_trust_is_not_there_for_others() -> None:
    servers = visible(a=ruled(), b=ruled())
    assert servers.to(SANDBOXED) is servers.all and [*servers.all] == ["a", "b"] and servers.only is None
    servers = visible(a=ruled(), b=ruled(direct_only=True))
    assert [*servers.to(SANDBOXED)] == ["a"] and [*servers.to(DIRECT)] == ["a", "b"]
    only = visible(a=ruled(direct_only=True))
    assert only.only is only.all["a"] and not only.to(SANDBOXED)


SKILLS, GET, DIRECTORY = "skills/list", "skills/get", "resources/directory/read"
FRESH = {"resultType": "complete", "cacheScope": "public"}


def skilled(name: str, *uris: str, ttl_ms: int = 9, directories: bool = False, unlisted: str = "") -> PagedServer:
    """A server that lists these skills, one on each page, and has another one. It has a template for all."""
    found = pages(templates=("skill://{+path}",))
    for n, uri in enumerate(uris):
        after = {"nextCursor": str(n + 1)} if n + 1 < len(uris) else {}
        found[SKILLS, str(n or "")] = {"skills": [{"uri": uri, "resources": [{"uri": uri}]}], "ttlMs": ttl_ms} | after
        found[SKILLS, str(n or "")] |= FRESH
    for uri in (*uris, *filter(None, [unlisted])):
        found[GET, uri] = {"skill": {"uri": uri, "from": name}}
    server = PagedServer(name, found)
    server.known_capabilities = {"resources": {}, "extensions": {SKILL_ID: {"directoryRead": directories}}}
    return server


async def skills(parts: MergedServers, **params: Any) -> tuple[list[str], dict[str, Any]]:
    """The URIs of a page of the skills of all servers, and the page."""
    result = await listed(parts, SKILLS, era=Era.MODERN, **params)
    return [skill["uri"] for skill in result["skills"]], result


A, B, C = (f"skill://{name}/SKILL.md" for name in "abc")


@requirement("spec.skills")
async def test_the_skills_of_all_servers_that_have_any_are_one_list_with_the_shortest_ttl() -> None:
    one, two, without = skilled("one", A, B), skilled("two", C, ttl_ms=5), PagedServer("without", pages())
    parts = merged(one, without, two)
    found, first = await skills(parts)
    assert found == [A, C] and first["ttlMs"] == 5
    found, rest = await skills(parts, cursor=first["nextCursor"])
    assert found == [B] and rest["ttlMs"] == 9 and "nextCursor" not in rest
    assert not without.asked, "it has not declared the extension"
    assert (await skills(merged(without, PagedServer("other", pages()))))[0] == []


@requirement("spec.skills")
async def test_a_skill_that_an_earlier_server_has_on_any_page_gets_its_server() -> None:
    parts = merged(skilled("one", A, B), skilled("two", B, C))
    found, first = await skills(parts)
    assert found == [A, "skill://two__/b/SKILL.md"]
    assert first["skills"][1]["resources"] == [{"uri": "skill://two__/b/SKILL.md"}]
    assert (await skills(parts, cursor=first["nextCursor"]))[0] == [B, C]


@requirement("spec.skills")
async def test_a_server_that_is_named_in_a_uri_gets_its_own_uri_and_its_results_get_the_server() -> None:
    parts = merged(skilled("one", A), skilled("two", A), PagedServer("without", pages()))
    wanted = a_call(GET, uri="skill://two__/a/SKILL.md")
    upstream, call, answer = await parts.resources.server_for(wanted)
    assert upstream.name == "two" and answer is None and msgspec.json.decode(call.params["uri"]) == A
    wanted.exchange.finish(Message(jsonrpc="2.0", id=1, result=msgspec.Raw(encode({"skill": {"uri": A}, "x": 1}))))
    assert (await answer_of(wanted.exchange))["result"] == {"skill": {"uri": "skill://two__/a/SKILL.md"}, "x": 1}
    for name, method in (("none", GET), ("without", GET), ("two", DIRECTORY)):
        with pytest.raises(Refused, match="not found"):
            await parts.resources.server_for(a_call(method, uri=f"skill://{name}__/a/SKILL.md"))


@requirement("spec.skills")
async def test_the_files_and_directories_of_a_skill_are_where_it_is_whatever_templates_say() -> None:
    one, two = skilled("one", A), skilled("two", A, B, directories=True)
    parts = merged(one, two)
    assert await owner(parts, "skill://b/x/y.md") == "two" and await owner(parts, "skill://a/x.md") == "one"
    asked = requests(one, two)
    assert await owner(parts, "skill://b/z.md") == "two" and requests(one, two) == asked, "the lists are known"
    assert await owner(parts, A, GET) == "one" and await owner(parts, "skill://b", DIRECTORY) == "two"
    assert await owner(parts, "skill://a", DIRECTORY) == "two", "the other one reads no directories"


@requirement("spec.skills")
async def test_a_skill_that_nobody_lists_is_asked_for_at_each_server_that_has_skills() -> None:
    servers = skilled("one", A), PagedServer("without", pages()), skilled("two", B, unlisted=C)
    parts = merged(*servers)
    found = await parts.resources.find(C, a_call(GET, uri=C))
    assert found.upstream.name == "two" and found.answer is not None
    assert (GET, C) in servers[0].asked and not servers[1].asked
    assert await owner(parts, C) == "two", "it is remembered"
    with pytest.raises(Refused, match="not found") as refused:
        await owner(parts, "skill://none/SKILL.md", GET)
    assert refused.value.code == -32602, "in both eras"


@requirement("spec.skills")
@pytest.mark.parametrize("items", [None, 7, {"name": "x", "uri": A}, [None, "x", 7, {}, {"name": 7, "uri": 7}]])
async def test_what_is_no_list_keeps_no_list_of_other_servers_from_a_client(items: Any) -> None:
    wrong, good = ({("prompts/list", ""): {"prompts": found}} for found in (items, [{"name": "p"}]))
    found = await listed(merged(PagedServer("a", wrong), PagedServer("b", good)), "prompts/list")
    assert found["prompts"] == [{"name": "b__p"}]
    for page in ({}, {"skills": items}):
        without, having = PagedServer("wrong", {(SKILLS, ""): page}), skilled("good", A)
        without.known_capabilities = having.known_capabilities
        assert (await skills(merged(without, having)))[0] == [A]
