"""MCP Session Gateway: one durable, isolated session for every MCP client.

The names in `__all__` are the public API. Everything else may change with any version.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from gateway.version import __version__

if TYPE_CHECKING:
    from gateway.config.settings import Settings
    from gateway.integrations.app_session import AppSession, SessionNotLoaded
    from gateway.integrations.mounted_gateway_middleware import GatewaySessionMiddleware
    from gateway.integrations.sdk_event_store import SdkEventStore, SdkSubscriptionBus
    from gateway.integrations.session_middleware import SessionMiddleware
    from gateway.observability.logs import log_formatter
    from gateway.serving.app import create_app
    from gateway.serving.gateway import Gateway
    from gateway.serving.stdio import serve_stdio

__all__ = [
    "AppSession",
    "Gateway",
    "GatewaySessionMiddleware",
    "SdkEventStore",
    "SdkSubscriptionBus",
    "SessionMiddleware",
    "SessionNotLoaded",
    "Settings",
    "__version__",
    "create_app",
    "log_formatter",
    "serve_stdio",
]

_MODULES: Final = {
    "AppSession": "gateway.integrations.app_session",
    "Gateway": "gateway.serving.gateway",
    "GatewaySessionMiddleware": "gateway.integrations.mounted_gateway_middleware",
    "SdkEventStore": "gateway.integrations.sdk_event_store",
    "SdkSubscriptionBus": "gateway.integrations.sdk_event_store",
    "SessionMiddleware": "gateway.integrations.session_middleware",
    "SessionNotLoaded": "gateway.integrations.app_session",
    "Settings": "gateway.config.settings",
    "create_app": "gateway.serving.app",
    "log_formatter": "gateway.observability.logs",
    "serve_stdio": "gateway.serving.stdio",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562), so that the demo server starts without the gateway's
    libraries."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
