"""An issuer of access tokens for tests: publishes its keys as JWKS over HTTP, rotates them, and signs any claims."""

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tests.support.http_thread import Handler, answering

AUDIENCE = "https://mcp.example/mcp"


class Issuer:
    """`url` is the issuer's name, `keys` are published by key id, `asked` counts the requests for them."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.keys: dict[str, rsa.RSAPrivateKey] = {}
        self.asked = 0
        self.rotate("first")

    def rotate(self, name: str) -> None:
        """Replace all keys by a new one with this key id."""
        self.keys = {name: rsa.generate_private_key(public_exponent=65_537, key_size=2_048)}

    def jwks(self) -> dict[str, Any]:
        """The published keys as a JSON Web Key Set (RFC 7517)."""
        found = []
        for name, key in self.keys.items():
            found.append({**json.loads(RSAAlgorithm.to_jwk(key.public_key())), "kid": name, "use": "sig"})
        return {"keys": found}

    def token(self, subject: str = "ada", *, key: Any = None, kid: str | None = None, **claims: Any) -> str:
        """A token valid for a minute, except for what the arguments change. A claim of None is left out."""
        name, own = next(iter(self.keys.items()))
        now = int(time.time())
        body = {"iss": self.url, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + 60, "scope": "mcp", **claims}
        body = {name: value for name, value in body.items() if value is not None}
        return jwt.encode(body, key or own, algorithm="RS256", headers={"kid": kid or name})

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

    with answering(Keys) as port:
        issuer = Issuer(port)
        yield issuer
