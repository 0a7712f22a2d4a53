"""OAuth 2.0 Protected Resource Metadata (RFC 9728), by which clients find the authorization server."""

from typing import Any, Final
from urllib.parse import urlsplit

from gateway.config.auth import AuthSettings

__all__ = ["ResourceMetadata"]

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


class ResourceMetadata:
    """The metadata document. `paths` are those it is served at, `url` is its address; both are empty if no resource is
    configured."""

    def __init__(self, settings: AuthSettings) -> None:
        self._settings = settings
        parts = urlsplit(settings.resource)
        is_there = bool(settings.resource and settings.jwt)
        # RFC 9728 §3.1: the well-known path goes between host and path. It is served at the root as well.
        path = parts.path.rstrip("/")
        self.paths = tuple(dict.fromkeys((WELL_KNOWN + path, WELL_KNOWN))) if is_there else ()
        self.url = f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{path}" if is_there else ""

    def document(self) -> dict[str, Any]:
        """The metadata, as JSON data."""
        scopes = list(dict.fromkeys(scope for entry in self._settings.jwt for scope in entry.scopes))
        document: dict[str, Any] = {
            "resource": self._settings.resource,
            "authorization_servers": [entry.issuer for entry in self._settings.jwt],
            "bearer_methods_supported": ["header"],
        }
        return document | ({"scopes_supported": scopes} if scopes else {})
