"""Define the settings of servers' secrets, the gateway's keys, and the certificates between gateways, and read them."""

import contextlib
import logging
import os
import re
import ssl
from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from gateway.config.addresses import base_url, is_loopback, url_here
from gateway.config.configuration_errors import ConfigurationError
from gateway.config.settings_base import Frozen
from session_store import InvalidKeyRing, KeyRing, StoreError, backend_for
from transports.peer_tls import PeerTls

_NAME: Final = r"[A-Za-z0-9_.-]+"
PLACEHOLDER: Final = re.compile(rf"(\$?)\$\{{(secret|secret_file):({_NAME})\}}")
"""The placeholder of a secret, or of its file. After another `$` it is the text itself."""
_BEGIN: Final = re.compile(r"\$\{secret(?:_file)?:")


def secrets_in(*values: str, kind: str = "") -> tuple[str, ...]:
    """Return the names of the secrets that these values refer to. `kind`: `secret` or `secret_file`; empty: both."""
    found = (one for value in values for one in PLACEHOLDER.finditer(value))
    return tuple(dict.fromkeys(one[3] for one in found if not one[1] and kind in ("", one[2])))


def fault_of_placeholders(values: Mapping[str, str], known: Collection[str]) -> str:
    """Return what is wrong with the placeholders of secrets in `values`, by variable or header; empty if nothing is.
    `known`: the names of all secrets."""
    for variable, value in values.items():
        if _BEGIN.search(PLACEHOLDER.sub("", value)):
            return f"{variable}: write ${{secret:NAME}} or ${{secret_file:NAME}}, with a name from gateway.secrets"
        for name in secrets_in(value):
            if name not in known:
                how = (
                    f'add one to the configuration: "{name}": {{"file": "/run/secrets/{name}"}}, or "env" or "command"'
                )
                return f"gateway.secrets has no entry {name!r}: {how}"
    return ""


def fault_of_name(name: str) -> str:
    """Return why a secret cannot have this name; empty if it can."""
    return "" if re.fullmatch(_NAME, name) else "a name has only letters, digits, '_', '.' and '-'"


class TokenEndpoint(Frozen):
    """An authorization server that gives tokens to the gateway."""

    token_endpoint: str
    """URL of the authorization server's token endpoint: https, or http on this machine."""
    client_id: Annotated[str, Field(min_length=1)]
    """The gateway's client id at the authorization server."""
    client_secret_file: Path | None = None
    """The file that contains the gateway's client secret. Not set: a public client, which only has its id."""

    @field_validator("token_endpoint")
    @classmethod
    def _is_safe(cls, url: str) -> str:
        return safe_url(url)


class ExchangeSettings(TokenEndpoint):
    """Where access tokens of callers are exchanged for tokens of a server (RFC 8693)."""

    audience: str = ""
    """The server for which the token is, by the name that the authorization server knows (RFC 8693 §2.1)."""
    resource: str = ""
    """The server for which the token is, by its URL (RFC 8707)."""
    scope: str = ""
    """Scopes of the token, separated by spaces. Empty: the authorization server decides."""
    id_jag: TokenEndpoint | None = None
    """The server's own authorization server, if that one gives the token, for an assertion of the identity provider at
    `token_endpoint` (ID-JAG). Needs `audience`, which is its issuer, and `resource`."""

    @model_validator(mode="after")
    def _assertion_is_for_a_server(self) -> Self:
        if self.id_jag is not None and not (self.audience and self.resource):
            raise ValueError("id_jag needs audience, the issuer of its authorization server, and the server's resource")
        return self


class ConsentSettings(Frozen):
    """How people let the gateway act for them at a server, at the server's own authorization server (OAuth 2.1,
    authorization code with PKCE)."""

    resource: str
    """URL of the server: https, or http on this machine. Its authorization server is found by it (RFC 9728), and its
    tokens are for it alone (RFC 8707)."""
    issuer: str = ""
    """The authorization server's URL. Empty: the first one that the server names."""
    scopes: tuple[str, ...] = ()
    """What people allow. Empty: what the server asks for."""
    client_id: str = ""
    """The gateway's client id at the authorization server; needs `issuer`. Empty: the URL of its metadata document if
    the authorization server takes that, else the gateway registers itself (RFC 7591)."""
    client_secret_file: Path | None = None
    """The file that contains the gateway's client secret. Not set: a public client, which only has its id."""

    @field_validator("resource", "issuer")
    @classmethod
    def _is_safe(cls, url: str) -> str:
        return safe_url(url) if url else url

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.resource or "#" in self.resource:
            raise ValueError("resource must be the URL of a server, without a fragment")
        if self.client_secret_file is not None and not self.client_id:
            raise ValueError("client_secret_file needs client_id")
        if self.client_id and not self.issuer:
            raise ValueError(
                "client_id needs issuer, the authorization server that knows this client: a server that names another "
                "one would get the secret, and the codes of people"
            )
        return self

    def is_for(self, url: str) -> bool:
        """Return True if tokens may be sent to this URL: it is `resource`, or below it."""
        own, other = urlsplit(self.resource), urlsplit(url)
        is_there = (own.scheme, own.netloc.lower()) == (other.scheme, other.netloc.lower())
        return is_there and f"{other.path}/".startswith(f"{own.path.rstrip('/')}/") and ".." not in other.path


def fault_of_url(url: str, consents: Mapping[str, ConsentSettings | None]) -> str:
    """Return why the tokens of secrets must not be sent to a server at this URL; empty if they may. `consents`: the
    `consent` settings of these secrets, by secret; None for a secret without them."""
    faults = [name for name, consent in consents.items() if consent is not None and not consent.is_for(url)]
    return f"its url is not that of gateway.secrets.{faults[0]}.consent.resource, nor below it" if faults else ""


def browser_url(public: str, resource: str, host: str, port: int) -> str:
    """Return the gateway's URL for browsers. `public` given: it is `public`. Else `resource` (`auth.resource`) given:
    it is that of `resource`, but only if clients find all servers there. Neither given: it is that of the listener on
    `host` and `port`, if this is on loopback. Return an empty string in all other cases, and if the URL is not safe for
    what people enter."""
    is_whole = bool(public) or urlsplit(resource).path.rstrip("/") in ("", "/mcp")
    try:
        if given := public or resource:
            return safe_url(base_url(given)) if is_whole else ""
        return url_here(host, port) if is_loopback(host) else ""
    except ValueError:
        return ""


def safe_url(url: str) -> str:
    """Check that tokens may be sent to a URL, and return it: it is https, or http on this machine. Raises `ValueError`
    otherwise."""
    parts = urlsplit(url)
    is_local = parts.scheme == "http" and is_loopback(parts.hostname or "")
    # Without a user: the client id and the secret have settings of their own. `port` raises `ValueError`.
    if not parts.hostname or parts.port == 0 or "@" in parts.netloc or not (parts.scheme == "https" or is_local):
        raise ValueError("must be an https:// URL with a host, without a user: clients' tokens are sent there")
    return url


class SecretSettings(Frozen):
    """Where a secret comes from, and which principals get it. With `{subject}` in the source, each principal has a
    value of its own."""

    file: str = ""
    """The file that contains the secret. `{subject}` is replaced by the principal's name, `{issuer}` by the
    percent-encoded issuer of that name."""
    env: str = ""
    """The environment variable of the gateway that contains the secret. `{subject}` and `{issuer}` as in `file`. The
    name must not begin with `{subject}`."""
    command: tuple[str, ...] = ()
    """The command that prints the secret; its output is cached for a minute. `{subject}` and `{issuer}` as in `file`.
    It gets the variables that servers inherit, and no others, because servers without a sandbox can read its
    environment while it runs."""
    exchange: ExchangeSettings | None = None
    """The token that an authorization server gives in exchange for the caller's access token. Each caller has its
    own."""
    consent: ConsentSettings | None = None
    """The token that an authorization server gives after a person has consented. Each principal has its own."""
    issuer: str = ""
    """Only principals of this issuer get the secret: `api-key`, the `issuer` of `auth.proxies`, or one of `auth.jwt`.
    Required if there are several issuers, and the source contains `{subject}` but not `{issuer}`, because the same name
    is a different principal at each issuer. Required with `exchange` if `auth.jwt` has several issuers, because tokens
    of one are not sent to another."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(map(bool, (self.file, self.env, self.command, self.exchange, self.consent))) != 1:
            raise ValueError("give exactly one of file, env, command, exchange and consent")
        if self.consent is not None and find_spec("mcp") is None:
            raise ValueError("consent needs more packages: pip install 'mcp-session-gateway[mcp]'")
        if self.env.startswith("{subject}"):
            raise ValueError(
                "env must not begin with {subject}, because principals could then read other variables of the gateway"
            )
        return self

    @property
    def tokens(self) -> ExchangeSettings | ConsentSettings | None:
        """Return the settings by which principals get tokens of their own; None for any other source."""
        return self.exchange or self.consent

    @property
    def clients(self) -> dict[str, TokenEndpoint | ConsentSettings]:
        """Return the settings of each authorization server at which the gateway is a client, by the name of the
        setting: `exchange`, `exchange.id_jag`, `consent`."""
        id_jag = None if self.exchange is None else self.exchange.id_jag
        found = {"exchange": self.exchange, "exchange.id_jag": id_jag, "consent": self.consent}
        return {name: client for name, client in found.items() if client is not None}

    @property
    def files(self) -> list[Path]:
        """Return the paths of all files that the secret needs: `file`, with its placeholders (`{subject}`, `{issuer}`),
        and the files that `client_secret_file` names."""
        own = [Path(self.file)] if self.file else []
        return own + [file for client in self.clients.values() if (file := client.client_secret_file) is not None]

    @property
    def is_personal(self) -> bool:
        return self.has("{subject}")

    def has(self, placeholder: str) -> bool:
        """Return True if the file, variable or command of the secret contains the placeholder (`{subject}`)."""
        return any(placeholder in part for part in (self.file, self.env, *self.command))


_MOST_BYTES: Final = 64 << 10


class UnusableSecret(ValueError):
    """A file does not contain a secret. The message says which file and why, and quotes nothing from it."""


def secret_in(file: Path, named_by: str) -> str:
    """Return the text of a file, without white space around it. `named_by` is the setting that names the file, for
    messages.

    Raises:
        UnusableSecret: the file cannot be read, is empty or too large, or is not UTF-8 text.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UnusableSecret(f"{named_by}: {file}: {error.strerror or error}") from None
    try:
        text = data.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise UnusableSecret(f"{named_by}: {file} is not UTF-8 text") from None
    if not text or len(data) > _MOST_BYTES:
        raise UnusableSecret(f"{named_by}: {file} is {'too large' if text else 'empty'}")
    return text


def others_can_read(file: Path) -> bool:
    """Return True if the file's permissions let its group or others read it. Return False also if the file is
    inaccessible, which `secret_in` reports."""
    try:
        return bool(file.stat().st_mode & 0o044)
    except OSError:
        return False


logger = logging.getLogger(__name__)

KEYS_FILE = "MCP_GATEWAY_KEYS_FILE"


def key_ring(store: str) -> KeyRing:
    """Return the operator's keys from `MCP_GATEWAY_KEYS`, or from the file that `MCP_GATEWAY_KEYS_FILE` names. If
    neither is set, return the keys of the store's backend. `store` is the store's URL.

    Raises:
        ConfigurationError: the keys cannot be used, or are missing and several gateways have to share them.
    """
    ring = given_keys()
    if ring is not None:
        return ring
    try:
        backend = backend_for(store)
        if not backend.needs_keys:
            return backend.own_keys()
    except (StoreError, ValueError) as error:
        raise ConfigurationError(str(error)) from None
    raise ConfigurationError(
        f"MCP_GATEWAY_KEYS is not set, nor is {KEYS_FILE}: gateways that share a store must share their keys, and "
        "sessions outlive a restart only with the same keys (`mcp-session-gateway keygen` makes one)"
    )


def given_keys() -> KeyRing | None:
    """Return the keys that environment variables give; None if none of them is set.

    Raises:
        ConfigurationError: the keys cannot be used.
    """
    text, file = os.environ.get("MCP_GATEWAY_KEYS", ""), key_file()
    if text and file is not None:
        raise ConfigurationError(f"MCP_GATEWAY_KEYS and {KEYS_FILE} are both set: give the keys in one of them")
    if file is not None:
        if others_can_read(file):
            logger.warning("%s: %s can be read by users other than its owner: chmod 600", KEYS_FILE, file)
        try:
            text = secret_in(file, KEYS_FILE).replace("\n", ",")
        except UnusableSecret as error:
            raise ConfigurationError(str(error)) from None
    try:
        return KeyRing.parse(text) if text else None
    except InvalidKeyRing as error:
        raise ConfigurationError(f"{'MCP_GATEWAY_KEYS' if file is None else KEYS_FILE}: {error}") from None


def key_file() -> Path | None:
    """Return the file of the operator's keys (`MCP_GATEWAY_KEYS_FILE`); None if it is not set."""
    given = os.environ.get(KEYS_FILE, "")
    return Path(given) if given else None


class PeerTlsSettings(Frozen):
    """The `peer_tls` object."""

    certificate: Path | None = None
    """PEM file with the certificate of this gateway, and its key unless `key` is set. Not set: no TLS."""
    key: Path | None = None
    """PEM file with the key of `certificate`."""
    authority: Path | None = None
    """PEM file with the authority that has signed the certificates of all gateways on the store. Use one that signs
    for nothing else."""

    @model_validator(mode="after")
    def _complete(self) -> "PeerTlsSettings":
        if (self.certificate is None) != (self.authority is None) or (self.key and self.certificate is None):
            raise ValueError("peer_tls needs both certificate and authority")
        return self


def peer_tls(settings: PeerTlsSettings) -> PeerTls | None:
    """Return the TLS contexts for both sides of connections between gateways; None: no TLS. Host names in certificates
    are not checked, because gateways prove with their keys which replica they are.

    Raises:
        ConfigurationError: a file cannot be used.
    """
    if settings.certificate is None or settings.authority is None:
        return None
    contexts = []
    for side in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER):
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        own = ", ".join(str(file) for file in (settings.certificate, settings.key) if file is not None)
        with _usable(own, "a certificate and its key"):
            context.load_cert_chain(settings.certificate, settings.key)
        with _usable(str(settings.authority), "certificates of an authority"):
            context.load_verify_locations(settings.authority)
        contexts.append(context)
    return PeerTls(*contexts)


@contextlib.contextmanager
def _usable(files: str, what: str) -> Iterator[None]:
    """Raise errors of the block as `ConfigurationError` with the names of the `files`, which Python's messages lack.
    `what`: what these files have to contain."""
    try:
        yield
    except OSError as error:  # of which ssl.SSLError is one
        reason = error.strerror or str(error)
        raise ConfigurationError(f"gateway.peer_tls: {files}: {reason}: give {what} as PEM files") from None
