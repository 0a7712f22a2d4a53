"""Who calls: keys, tokens and the headers of trusted proxies."""

import asyncio
import contextlib
import hashlib
import hmac
import math
from typing import Any, cast

import pytest

from gateway.config.auth import AuthSettings
from gateway.config.sessions import FieldSettings
from gateway.identity.access_tokens import AccessTokens
from gateway.identity.authenticate import Authenticator, KeyDigests, ResourceMetadata, digest_of
from gateway.identity.credential_claims import InsufficientScope
from session_store import ANONYMOUS, Principal
from tests.requirements import requirement
from tests.support.credentials import sha256
from transports.inbound_port import Refused

ADA = Principal(issuer="api-key", subject="ada")
PROXIES = {"networks": ["127.0.0.0/8"], "subject_header": "X-User", "permissions_header": "X-May"}


def trusting_issuer(entry: dict[str, Any], **settings: Any) -> AuthSettings:
    entry = {"issuer": "https://id.example", "audience": "m", "jwks_url": "https://id.example/k", **entry}
    return AuthSettings.model_validate({"resource": "https://mcp.example/mcp", "jwt": [entry], **settings})


@requirement("wall.authority")
def test_a_proxys_names_are_usable_and_utf_8() -> None:
    auth = AuthSettings.model_validate({"proxies": PROXIES})
    identity = Authenticator(api_keys={}, allow_anonymous=True, auth=auth)

    def named(raw: bytes) -> str:
        who = asyncio.run(identity.authenticate({"x-user": raw.decode("latin-1")}, "127.0.0.1"))
        return who.principal.subject

    for name in ("ada", "CN=ada,O=x", "Łucja", "àla"):
        assert named(name.encode()) == name
    for raw in (b"a\r\nX-User: root", b" ada", b"x" * 257, "é".encode("latin-1")):
        with pytest.raises(Refused) as refused:
            named(raw)
        assert refused.value.status == 401, raw


@requirement("pol.auth")
async def test_every_key_is_compared_whole_whichever_was_nearly_right(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    honest = hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return honest(one, other)

    monkeypatch.setattr("gateway.identity.authenticate.hmac.compare_digest", counting)
    keys = {f"k{n}": (sha256(f"key-{n}"),) for n in range(5)}
    identity = Authenticator(api_keys=keys, allow_anonymous=False)
    for key in ("key-0", "key-4", "key-00", "", "key-4x", "\udcff"):
        compared.clear()
        with contextlib.suppress(Refused):
            await identity.authenticate({"authorization": f"Bearer {key or 'x'}"})
        # Of digests, never of the keys: a digest that is nearly right says nothing about a key.
        assert len(compared) == 5 and {len(part) for pair in compared for part in pair} == {32}


@requirement("wall.authority")
async def test_a_head_from_one_address_is_one_callers_while_its_credential_is_valid() -> None:
    auth = trusting_issuer({}, proxies=PROXIES)
    identity = Authenticator(api_keys={"ada": (sha256("key"),)}, allow_anonymous=True, auth=auth)
    for headers, peer, principal in (
        ({"authorization": "Bearer key"}, "", ADA),
        ({}, "", ANONYMOUS),
        ({"x-user": "ada"}, "127.0.0.1", Principal(issuer="proxy", subject="ada")),
    ):
        who = await identity.authenticate(headers, peer)
        assert (who.principal, who.until) == (principal, math.inf)
    ada = Principal(issuer="https://id.example", subject="ada")
    assert identity.token_holder(ada, {}, 7.0).until == 7.0 and identity.token_holder(ada, {}).until == 0


@requirement("pol.auth")
def test_a_challenge_says_what_was_wrong_and_where_to_get_a_token() -> None:
    auth = trusting_issuer({"scopes": ["a", "b"]})
    keys = {"ada": (sha256("key"),)}
    identity = Authenticator(api_keys=keys, allow_anonymous=False, auth=auth, metadata_url="https://mcp.example/meta")
    found = []
    for headers in ({}, {"authorization": "Basic key"}, {"authorization": "Bearer other"}):
        with pytest.raises(Refused) as refused:
            asyncio.run(identity.authenticate(headers))
        assert refused.value.status == 401
        found += [value for name, value in refused.value.headers.items() if name.lower() == "www-authenticate"]
    known = 'scope="a b", resource_metadata="https://mcp.example/meta"'
    plain = f'Bearer realm="mcp-session-gateway", {known}'
    assert found == [plain, plain, f'Bearer realm="mcp-session-gateway", error="invalid_token", {known}']


@requirement("ctx.open", "wall.authority")
def test_fields_come_from_claims_of_tokens_and_from_headers_of_proxies_alone() -> None:
    fields = {
        "team": FieldSettings(claim="team"),
        "desk": FieldSettings(header="X-Desk"),
        "own": FieldSettings(header="X-Own", client_header=True),
    }
    identity = Authenticator(
        api_keys={}, allow_anonymous=True, auth=trusting_issuer({}, proxies=PROXIES), fields=fields
    )
    headers = {"x-desk": "7", "x-own": "mine"}
    assert asyncio.run(identity.authenticate(headers, "10.0.0.1")).granted is None
    granted = asyncio.run(identity.authenticate(headers, "127.0.0.1")).granted
    assert granted is not None and granted.fields == (("desk", "7"),)
    named = asyncio.run(identity.authenticate({**headers, "x-user": "ada"}, "127.0.0.1"))
    assert named.principal.subject == "ada" and named.until == math.inf
    assert named.granted is not None and named.granted.fields == (("desk", "7"),)
    holder = identity.token_holder(Principal(issuer="https://id.example", subject="ada"), {"team": "red"})
    assert holder.granted is not None and holder.granted.fields == (("team", "red"),)


class Tokens:
    """Verifies the token `a.b.c` alone, and not at once."""

    def cached(self, token: str) -> None:
        """It caches nothing."""

    async def verify(self, token: str) -> tuple[Principal, dict[str, Any], float]:
        if token != "a.b.c":
            raise InsufficientScope(["mcp", "more"], {"more"})
        return Principal(issuer="https://id.example", subject="ada"), {"team": "red"}, 7.0


@requirement("pol.auth", "ctx.open")
def test_a_token_is_verified_and_its_holder_has_the_fields_of_the_proxy_too() -> None:
    fields = {"team": FieldSettings(claim="team"), "desk": FieldSettings(header="X-Desk")}
    auth, tokens = trusting_issuer({}, proxies=PROXIES), cast(AccessTokens, Tokens())
    identity = Authenticator(api_keys={}, allow_anonymous=True, auth=auth, tokens=tokens, fields=fields)
    headers = {"authorization": "Bearer a.b.c", "x-desk": "7"}
    assert identity.known(headers, "127.0.0.1") is None
    for peer, granted in (("127.0.0.1", (("team", "red"), ("desk", "7"))), ("10.0.0.1", (("team", "red"),))):
        who = asyncio.run(identity.authenticate(headers, peer))
        assert who.principal.subject == "ada" and who.until == 7.0
        assert who.granted is not None and who.granted.fields == granted
    with pytest.raises(Refused) as refused:
        asyncio.run(identity.authenticate({"authorization": "Bearer a.b.d"}))
    assert refused.value.status == 403
    challenge = 'Bearer realm="mcp-session-gateway", error="insufficient_scope", scope="mcp more"'
    assert refused.value.headers["WWW-Authenticate"] == challenge


@requirement("cred.exchange")
def test_a_token_is_kept_with_its_claims_only_while_servers_get_others_for_it() -> None:
    class Given(Tokens):
        async def verify(self, token: str) -> tuple[Principal, dict[str, Any], float]:
            principal, claims, until = await super().verify(token)
            return principal, claims | {"exp": 100}, until

    auth = trusting_issuer({"claims": {"workspace": "team"}})
    identity = Authenticator(api_keys={}, allow_anonymous=True, auth=auth, tokens=cast(AccessTokens, Given()))
    headers = {"authorization": "Bearer a.b.c"}
    for wanted in (False, True, False):
        identity.keep_tokens(wanted=wanted)
        granted = asyncio.run(identity.authenticate(headers)).granted
        assert granted is not None and granted.workspace == "red"
        token = granted.token
        assert token is None if not wanted else token is not None and (token.token, token.expires) == ("a.b.c", 130.0)


@requirement("pol.auth")
def test_the_metadata_of_the_resource_names_its_issuers_and_scopes() -> None:
    known = {
        "resource": "https://mcp.example/mcp",
        "authorization_servers": ["https://id.example"],
        "bearer_methods_supported": ["header"],
    }
    assert ResourceMetadata(trusting_issuer({})).document() == known
    assert ResourceMetadata(trusting_issuer({"scopes": ["a", "b"]})).document() == known | {
        "scopes_supported": ["a", "b"]
    }


@requirement("pol.auth")
def test_the_metadata_is_served_between_the_host_and_the_path_of_the_resource() -> None:
    known = "/.well-known/oauth-protected-resource"
    for resource, paths in (("https://a.example/b/mcp/", (f"{known}/b/mcp", known)), ("https://a.example", (known,))):
        metadata = ResourceMetadata(trusting_issuer({}).model_copy(update={"resource": resource}))
        assert metadata.paths == paths and metadata.url == f"https://a.example{paths[0]}"
    nothing = ResourceMetadata(AuthSettings())
    assert (nothing.paths, nothing.url) == ((), "")


def test_the_holder_of_a_key_is_found() -> None:
    keys = KeyDigests([("alice", digest_of("a")), ("bob", digest_of("b")), ("bob", digest_of("new"))])
    assert len(keys) == 3
    assert keys.holder("a") == "alice" and keys.holder("b") == keys.holder("new") == "bob"
    assert keys.holder("") is None and keys.holder(digest_of("a")) is None
    assert digest_of("\udcff") == hashlib.sha256(b"\xff").hexdigest(), "a key of bytes that are no UTF-8"
    assert not KeyDigests[str]([]) and KeyDigests[str]([]).holder("a") is None
