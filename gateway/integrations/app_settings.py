"""What `SessionMiddleware` is given: arguments, and `MCP_GATEWAY_…` variables for what is not an argument."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from gateway.config.keyring import given_keys
from gateway.config.load import ConfigurationError, explained, gathered
from gateway.config.model import Frozen
from gateway.config.sessions import SessionSettings
from gateway.config.settings import GatewaySettings
from session_store import InvalidKeyRing, KeyRing, StoreError, backend_for
from session_store.connect import BackendOptions, check_store_url

__all__ = ["AppSettings", "backend_of", "ring_of", "settings_of"]

logger = logging.getLogger(__name__)

_ISSUES: Final = "SessionMiddleware"


class AppSettings(Frozen):
    """The settings of the gateway that sessions of an app have as well."""

    store: str = ""
    store_file: str = ""
    session: SessionSettings = SessionSettings()


class _Given(Frozen):
    """What the environment gives, under the name by which messages find its variables."""

    gateway: AppSettings


def settings_of(store: str | None, times: Mapping[str, float | None]) -> AppSettings:
    """The settings: the environment, and over it the store's URL and the times that are not None.

    Raises:
        ConfigurationError: a value cannot be used, or the name of a variable is misspelt. The message names it, and
            says what to do. Other `MCP_GATEWAY_…` variables that are no settings are logged as warnings.
    """
    given = {name: value for name, value in times.items() if value is not None}
    # A URL that is given in the program is also given instead of the variable that names a file.
    overrides = {} if store is None else {"store": store, "store_file": ""}
    # Variables of a gateway that runs beside the app are no mistakes.
    found = gathered(None, overrides, GatewaySettings)
    for note in found.notes:
        logger.warning("%s: %s", _ISSUES, note.text)
    own = {name: value for name, value in found.document["gateway"].items() if name in AppSettings.model_fields}
    try:
        settings = _Given.model_validate({"gateway": own}).gateway
    except ValidationError as error:
        raise ConfigurationError(f"{_ISSUES}: {explained(error, found.origins, _Given)}") from None
    try:
        session = SessionSettings.model_validate({**settings.session.model_dump(), **given})
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise ConfigurationError(f"{_ISSUES}({fault['loc'][0]}={fault['input']!r}): {fault['msg']}") from None
    return settings.model_copy(update={"session": session})


def backend_of(settings: AppSettings) -> Any:
    """The backend of the store's URL, not open yet.

    Raises:
        ConfigurationError: there is no URL, or it selects no store.
    """
    if not settings.store:
        raise ConfigurationError(
            f'{_ISSUES} needs a store: give store="redis://host:6379/0", or set MCP_GATEWAY_STORE. '
            '"memory://" keeps sessions in one process, for as long as it runs'
        )
    try:
        check_store_url(settings.store)
        return backend_for(settings.store, BackendOptions(max_sessions=settings.session.max_sessions))
    except (StoreError, ValueError) as error:
        raise ConfigurationError(f"{_ISSUES}: store: {error}") from None


def ring_of(keys: str | Sequence[str] | KeyRing | None, backend: Any) -> KeyRing:
    """The keys: the argument, else those of the environment, else the backend's own.

    Raises:
        ConfigurationError: they cannot be used, or there are none and the store is shared.
    """
    try:
        if isinstance(keys, KeyRing):
            return keys
        if keys is not None:
            return KeyRing.parse(keys) if isinstance(keys, str) else KeyRing(keys)
    except InvalidKeyRing as error:
        raise ConfigurationError(f"{_ISSUES}(keys=…): {error}") from None
    ring = given_keys()
    if ring is not None:
        return ring
    if not backend.needs_keys:
        return backend.own_keys()  # type: ignore[no-any-return]  # a backend of any kind
    raise ConfigurationError(
        f"{_ISSUES} needs keys: give keys=…, or set MCP_GATEWAY_KEYS or MCP_GATEWAY_KEYS_FILE. All processes of "
        "the app have the same keys (`mcp-session-gateway keygen` makes one)"
    )
