"""An issuer of access tokens for tests: publishes its keys as JWKS over HTTP, rotates them, and signs any claims."""

import contextlib
import json
import time
from base64 import b64encode
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tests.support.http_thread import Handler, answering

AUDIENCE = "https://mcp.example/mcp"
ASSERTING_CLIENT = "gateway of ours"
"""The id by which the gateway is known to the authorization servers that assertions of the issuer are for."""
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
_ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"


class Issuer:
    """`url` is the issuer's name, `keys` are published by key id, `asked` counts the requests for them.

    It exchanges its tokens (RFC 8693) for tokens that live for `lives_s` seconds, or for identity assertions (ID-JAG),
    for a client with the id `gateway` and the secret `client secret`. `exchanged` has the tokens that it was sent,
    `revoked` those that it refuses.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.keys: dict[str, rsa.RSAPrivateKey] = {}
        self.asked = 0
        self.lives_s = 60
        self.exchanged: list[str] = []
        self.revoked: set[str] = set()
        self.rotate("first")

    def exchange(self, authorization: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Answer a request for a token: status and body (RFC 8693 §2.2, RFC 6749 §5.2)."""
        if authorization != "Basic " + b64encode(b"gateway:client%20secret").decode():
            return 401, {"error": "invalid_client"}
        token = form["subject_token"]
        is_revoked = token in self.revoked  # before a test can see the request, and revoke the token for later ones
        self.exchanged.append(token)
        kind, is_exchange = form["requested_token_type"], form["grant_type"].endswith(":grant-type:token-exchange")
        if form["subject_token_type"] != _ACCESS_TOKEN or kind not in (_ACCESS_TOKEN, _ID_JAG) or not is_exchange:
            return 400, {"error": "invalid_request"}
        try:
            claims = jwt.decode(token, next(iter(self.keys.values())).public_key(), ["RS256"], audience=AUDIENCE)
        except jwt.InvalidTokenError:
            return 400, {"error": "invalid_grant", "error_description": token}
        if is_revoked:
            return 400, {"error": "invalid_grant", "error_description": token}
        body = {"aud": form["audience"], "exp": int(time.time()) + self.lives_s, "scope": claims["scope"]}
        body["jti"] = str(len(self.exchanged))
        if kind == _ID_JAG:
            body |= {"client_id": ASSERTING_CLIENT, "resource": form["resource"]}
            made, named = self.token(claims["sub"], typ="oauth-id-jag+jwt", **body), "N_A"
        else:
            made, named = self.token(claims["sub"], **body, act={"sub": "gateway"}), "Bearer"
        answer = {"access_token": made, "issued_token_type": kind, "token_type": named}
        return 200, answer | {"expires_in": self.lives_s}

    def rotate(self, name: str) -> None:
        """Replace all keys by a new one with this key id."""
        self.keys = {name: rsa.generate_private_key(public_exponent=65_537, key_size=2_048)}

    def jwks(self) -> dict[str, Any]:
        """The published keys as a JSON Web Key Set (RFC 7517)."""
        found = []
        for name, key in self.keys.items():
            found.append({**json.loads(RSAAlgorithm.to_jwk(key.public_key())), "kid": name, "use": "sig"})
        return {"keys": found}

    def token(
        self, subject: str = "ada", *, key: Any = None, kid: str | None = None, typ: str = "JWT", **claims: Any
    ) -> str:
        """A token valid for a minute, except for what the arguments change. A claim of None is left out."""
        name, own = next(iter(self.keys.items()))
        now = int(time.time())
        body = {"iss": self.url, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + 60, "scope": "mcp", **claims}
        body = {name: value for name, value in body.items() if value is not None}
        return jwt.encode(body, key or own, algorithm="RS256", headers={"kid": kid or name, "typ": typ})

    def settings(self, **more: Any) -> dict[str, Any]:
        """The setting `gateway.auth` that trusts this issuer; `more` changes its entry of `jwt`."""
        entry = {"issuer": self.url, "audience": AUDIENCE, "jwks_url": f"{self.url}/jwks.json", "scopes": ["mcp"]}
        return {"resource": AUDIENCE, "jwt": [{**entry, **more}]}


@contextlib.contextmanager
def running_issuer() -> Iterator[Issuer]:
    """An issuer that serves its keys in a thread of this process."""

    class Keys(Handler):
        def do_GET(self) -> None:
            issuer.asked += 1
            self.respond(200, "application/json", json.dumps(issuer.jwks()).encode())

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, body = issuer.exchange(self.headers.get("Authorization", ""), dict(parse_qsl(sent)))
            self.respond(status, "application/json", json.dumps(body).encode())

    with answering(Keys) as port:
        issuer = Issuer(port)
        yield issuer
