"""Results of a server are found while they are fresh, by those whom they are for."""

import json
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from gateway.config.upstreams import UpstreamSettings
from gateway.protocol.methods import CHANGES
from gateway.upstreams.first_answer_cache import FirstAnswers
from gateway.upstreams.result_cache import CacheKey, ResultCache
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement

pytestmark = requirement("cache.servers")

LIST, READ = "tools/list", "resources/read"


def result(ttl_ms: int = 5_000, scope: str = "public", **more: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps({"tools": [], "ttlMs": ttl_ms, "cacheScope": scope, **more}).encode())


def key_of(
    method: str = LIST, whom: str = "ann", public: bytes | None = b"", session: str = "", **params: Any
) -> CacheKey:
    raw = {name: json.dumps(value).encode() for name, value in params.items()}
    return CacheKey.of(method, raw, public=public, private=whom.encode() if whom else None, session=session)


class Kept:
    def __init__(self, most_bytes: int = 1 << 20) -> None:
        self.clock = FakeClock()
        self.cache = ResultCache(most_bytes, self.clock)

    def keep(self, request: CacheKey, found: msgspec.Raw) -> None:
        self.cache.keep(request, found, self.cache.version(request.method))

    def ttl(self, request: CacheKey) -> int | None:
        found = self.cache.find(request)
        return None if found is None else json.loads(found)["ttlMs"]


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_a_result_is_fresh_for_its_time_and_says_how_much_is_left(kept: Kept) -> None:
    kept.keep(key_of(), result(5_000))
    kept.clock.pass_time(2)
    assert kept.ttl(key_of()) == 3_000
    kept.clock.pass_time(3)
    assert kept.ttl(key_of()) is None and len(kept.cache) == 0


def test_a_public_result_is_for_all_and_a_private_one_for_one(kept: Kept) -> None:
    kept.keep(key_of(), result())
    assert kept.ttl(key_of(whom="bob")) and kept.ttl(key_of(whom=""))
    assert kept.ttl(key_of(public=b"other extensions", whom="bob")) is None
    kept.keep(key_of(READ, uri="x"), result(scope="private"))
    assert kept.ttl(key_of(READ, uri="x")) and kept.ttl(key_of(READ, whom="bob", uri="x")) is None
    kept.keep(key_of(READ, whom="", uri="y"), result(scope="private"))
    assert kept.ttl(key_of(READ, whom="", uri="y")) is None, "nobody can be named whom it is for"


def test_a_result_answers_the_same_request_only(kept: Kept) -> None:
    kept.keep(key_of(READ, uri="x"), result())
    assert kept.ttl(key_of(READ, uri="x")) and kept.ttl(key_of(READ, uri="x", _meta={"progressToken": 1}))
    for other in (key_of(READ, uri="y"), key_of(LIST, uri="x"), key_of(READ, uri="x", more=1), key_of(READ)):
        assert kept.ttl(other) is None
    one = CacheKey.of(READ, {"a": b"1", "b": b"2"}, public=b"", private=None)
    other = CacheKey.of(READ, {'a",1],["b': b"2"}, public=b"", private=None)
    assert one.public != other.public, "no text of a client makes its request another one"


@pytest.mark.parametrize("found", [result(0), result(-1), result(resultType="input_required"), "none"])
def test_what_may_not_be_kept_is_not(kept: Kept, found: Any) -> None:
    kept.keep(key_of(), found)
    assert len(kept.cache) == 0


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        ("notifications/tools/list_changed", {LIST}),
        ("notifications/resources/list_changed", {"resources/list", READ}),
        ("notifications/resources/updated", {READ}),
    ],
)
def test_a_change_that_the_server_notifies_of_ends_it(change: str, gone: set[str]) -> None:
    kept, requests = Kept(), {method: key_of(method) for method in (LIST, "resources/list", READ)}
    versions = {method: kept.cache.version(method) for method in requests}
    for request in requests.values():
        kept.keep(request, result())
    kept.cache.changed(CHANGES[change])
    assert {method for method, request in requests.items() if kept.ttl(request) is None} == gone
    for method, request in requests.items():
        kept.cache.keep(request, result(), versions[method])
    assert {method for method, request in requests.items() if kept.ttl(request) is None} == gone, "key_of for before it"


def test_nothing_is_kept_if_the_operator_wants_none() -> None:
    kept = Kept(0)
    assert not kept.cache.takes(LIST) and Kept().cache.takes(LIST) and not Kept().cache.takes("tools/call")
    kept.keep(key_of(), result())
    assert kept.ttl(key_of()) is None


def test_results_are_bounded_in_bytes_and_so_in_number() -> None:
    kept = Kept(64 << 10)
    for n in range(1_000):
        kept.keep(key_of(READ, uri=n), result())
    assert 50 < len(kept.cache) < 128
    kept.keep(key_of(READ, uri="large"), result(text="x" * (17 << 10)))
    assert kept.ttl(key_of(READ, uri="large")) is None, "one result takes a quarter at most"
    assert kept.ttl(key_of(READ, uri=999)), "the latest is there"


def test_what_was_kept_for_a_session_goes_with_it(kept: Kept) -> None:
    kept.keep(key_of(session="s1"), result(scope="private"))
    kept.keep(key_of(whom="bob", session="s2"), result(scope="private"))
    kept.keep(key_of(READ, session="s1"), result())
    kept.cache.forget("s1")
    assert kept.ttl(key_of()) is None and kept.ttl(key_of(whom="bob")) and kept.ttl(key_of(READ))


def test_results_of_a_legacy_server_are_fresh_as_long_as_the_operator_says_and_stay_as_they_are(kept: Kept) -> None:
    request = CacheKey.of(LIST, {}, public=None, private=b"ann", fresh_ms=2_000)
    plain = msgspec.Raw(b'{"tools":[]}')
    kept.keep(request, plain)
    assert kept.cache.find(request) == bytes(plain) and kept.cache.has(request)
    assert kept.cache.find(key_of()) is None, "a request of the other era has another key"
    kept.clock.pass_time(1.9)
    assert kept.cache.has(request)
    kept.clock.pass_time(0.2)
    assert not kept.cache.has(request) and len(kept.cache) == 0
    kept.keep(request, result(ttl_ms=60_000))
    kept.cache.changed(CHANGES["notifications/tools/list_changed"])
    assert not kept.cache.has(request)


def test_all_pages_of_a_list_or_none(kept: Kept) -> None:

    def page(params: Any) -> CacheKey:
        return CacheKey.of(LIST, params, public=b"", private=None)

    kept.keep(page({}), result(nextCursor="2"))
    assert kept.cache.pages(page) is None
    kept.keep(page({"cursor": b'"2"'}), result(tools=[{"name": "b"}]))
    pages = kept.cache.pages(page)
    assert pages is not None and [json.loads(each)["tools"] for each in pages] == [[], [{"name": "b"}]]
    kept.keep(page({"cursor": b'"2"'}), result(nextCursor="2"))
    assert kept.cache.pages(page) is None, "a list without an end"
    kept.keep(page({}), result(nextCursor={"a": 1}))
    assert len(list(kept.cache.pages(page) or ())) == 1, "what is no text is no cursor"


SESSION = replace(a_session(FakeClock()), metadata={"tier": "gold", "team": "a"}, token_hash="one")


def live_of(**fields: Any) -> Any:
    return SimpleNamespace(session=replace(SESSION, **fields), ended=False)


@requirement("cold.lists")
def test_metadata_and_credential_are_facts_of_a_process() -> None:
    found = FirstAnswers(ResultCache(1 << 20), 60)

    def key(**fields: Any) -> bytes:
        asked = found.cache_key("tools/list", {}, live_of(**fields), SESSION.context)
        assert asked is not None
        return asked.private

    assert key(id="another", metadata={"team": "a", "tier": "gold"}) == key()
    others = [key(metadata=metadata) for metadata in ({}, {"tier": "free", "team": "a"}, {"tier": "gold"})]
    assert len({key(), *others, key(token_hash="two")}) == 5


@requirement("cold.lists")
def test_a_handshake_is_kept_of_an_unused_process_and_as_it_was_asked() -> None:
    found, live = FirstAnswers(ResultCache(1 << 20), 60), live_of()
    shaken = {"known_lists": None, "initialize_result": b'{"serverInfo":{}}'}
    unused, used, told = (
        cast("Any", SimpleNamespace(users=users, was_used=was_used, **shaken))
        for users, was_used in (([], False), ([live], False), ([], True))
    )
    version = found.handshake_version()
    found.keep_handshake(live, used, version)
    found.keep_handshake(live, told, version)
    found.keep_handshake(live_of(links=("x/legacy",)), unused, version)
    found.keep_handshake(live, unused, version - 1)
    assert found.handshake(live) is None
    found.keep_handshake(live, unused, version)
    assert found.handshake(live) == b'{"serverInfo":{}}'
    assert found.handshake(live_of(metadata={})) is None


def test_a_server_behind_a_url_has_none() -> None:
    UpstreamSettings.model_validate({"command": "x", "lists_fresh_s": 60})
    with pytest.raises(ValueError, match=r"lists_fresh_s needs a command or in_process: .* URL"):
        UpstreamSettings.model_validate({"url": "http://127.0.0.1:1/mcp", "lists_fresh_s": 60})
