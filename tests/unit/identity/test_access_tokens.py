"""Which tokens are credentials, and of whom."""

import time
from collections.abc import Iterator
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from gateway.config.auth import JwtSettings
from gateway.identity import access_tokens
from gateway.identity.access_tokens import AccessTokens, is_access_token
from gateway.identity.credential_claims import InsufficientScope, InvalidToken
from session_store import Principal
from session_store.testing import FakeClock
from tests.requirements import requirement
from tests.support.issuer import Issuer

pytestmark = requirement("pol.auth")


@pytest.fixture(scope="module")
def _issuer() -> Issuer:
    return Issuer(1)


@pytest.fixture
def issuer(_issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Issuer]:
    """An issuer whose keys are fetched without a network."""
    _issuer.asked = 0

    def answer(request: httpx2.Request) -> httpx2.Response:
        _issuer.asked += 1
        return httpx2.Response(200, json=_issuer.jwks())

    client = httpx2.AsyncClient
    monkeypatch.setattr(httpx2, "AsyncClient", lambda **more: client(transport=httpx2.MockTransport(answer), **more))
    yield _issuer


def trusting(issuer: Issuer, clock: Any = time.time, **more: Any) -> AccessTokens:
    return AccessTokens([JwtSettings.model_validate(issuer.settings(**more)["jwt"][0])], clock)


@requirement("wall.authority")
def test_other_tokens_of_an_issuer_are_no_credentials() -> None:
    others: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"nonce": "n"}),
        ({}, {"at_hash": "h"}),
        ({}, {"c_hash": "h", "typ": "Bearer"}),
        ({}, {"s_hash": "h"}),
        ({}, {"typ": "ID"}),
        ({}, {"typ": "Bearer", "token_use": "id"}),
        ({}, {"events": {"http://schemas.openid.net/event/backchannel-logout": {}}}),
        ({"typ": "id_token"}, {}),
        ({"typ": "logout+jwt"}, {}),
        ({"typ": "at+jwt;x"}, {}),
    ]
    credentials: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"typ": "JWT"}, {}),
        ({"typ": "application/at+JWT"}, {"nonce": "n"}),
        ({}, {"typ": "Bearer", "nonce": "older Keycloaks"}),
        ({}, {"token_use": "access"}),
    ]
    assert [token for token in others if is_access_token(*token)] == []
    assert [token for token in credentials if not is_access_token(*token)] == []


STRANGER = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "of another issuer": ({"iss": "https://evil.example"}, "^this gateway does not trust its issuer"),
    "for another service": ({"aud": "https://other.example"}, "^its audience is another service$"),
    "expired": ({"exp": 1}, "^it has expired$"),
    "of the future": ({"iat": 4_000_000_000}, "issued in the future"),
    "bound to a key": ({"cnf": {"jkt": "x"}}, "^it is bound to a key"),
    "signed by a stranger": ({"key": STRANGER}, "InvalidSignatureError"),
    "of an unknown key": ({"kid": "other"}, "does not publish the key"),
    "an identity token": ({"nonce": "n"}, "^it is not an access token"),
    "of nobody": ({"subject": " "}, "its subject is invalid: it is empty"),
    "without an end": ({"exp": None}, "MissingRequiredClaimError"),
    "without an audience": ({"aud": None}, "MissingRequiredClaimError"),
    "for less": ({"scope": "mcps other"}, "lacks the scope mcp"),
}


@requirement("wall.authority")
@pytest.mark.parametrize("bad", BAD)
async def test_a_token_that_is_not_for_this_gateway_now_is_refused(issuer: Issuer, bad: str) -> None:
    change, why = BAD[bad]
    tokens, token = trusting(issuer), issuer.token(**change)
    with pytest.raises(InvalidToken, match=why) as refused:
        await tokens.verify(token)
    assert isinstance(refused.value, InsufficientScope) == (bad == "for less")
    assert tokens.cached(token) is None


async def test_the_operator_chooses_the_algorithms(issuer: Issuer) -> None:
    with pytest.raises(InvalidToken, match="InvalidAlgorithmError"):
        await trusting(issuer, algorithms=["ES256"]).verify(issuer.token())
    claims = jwt.decode(issuer.token(), options={"verify_signature": False})
    for algorithm, key in (("none", ""), ("HS256", "x" * 32)):
        token = jwt.encode(claims, key, algorithm=algorithm, headers={"kid": "first"})
        with pytest.raises(InvalidToken, match="InvalidAlgorithmError"):
            await trusting(issuer).verify(token)


async def test_a_verified_token_is_known_until_it_expires_and_not_for_long(issuer: Issuer) -> None:
    clock = FakeClock(time.time())
    tokens = trusting(issuer, clock)
    brief, lasting = issuer.token(), issuer.token("bob", exp=int(clock.now) + 3_600)
    assert tokens.cached(brief) is None
    principal, claims, until = found = await tokens.verify(brief)
    assert principal == Principal(issuer=issuer.url, subject="ada")
    assert until == claims["exp"] and claims["scope"] == "mcp"
    bob, _, until = await tokens.verify(lasting)
    assert bob.subject == "bob" and until == clock.now + access_tokens.CACHED_S
    assert tokens.cached(brief) == found
    clock.pass_time(61)
    assert tokens.cached(brief) is None and tokens.cached(lasting) is not None
    clock.pass_time(access_tokens.CACHED_S)
    assert tokens.cached(lasting) is None, "its key may have been withdrawn"


async def test_forged_tokens_do_not_flood_the_issuer(issuer: Issuer) -> None:
    tokens = trusting(issuer)
    for n in range(5):
        with pytest.raises(InvalidToken):
            await tokens.verify(issuer.token(kid=f"forged-{n}"))
        await tokens.verify(issuer.token(str(n)))
    assert issuer.asked == 1
