"""Compare the configuration of a running gateway with another one: what changes, and what only a restart changes. Pure.

A reload applies servers, policy, keys, secrets and a few limits. All other settings are those of listeners, stores and
parts that live as long as the process. If they differ, they are named, and stay as they are.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from gateway.config.configuration_errors import ConfigurationError
from gateway.config.load import Origins, explained
from gateway.config.secrets import secrets_in
from gateway.config.settings import GatewaySettings, Settings
from gateway.config.tools_lock import ToolsLock

_RELOADED: Final = frozenset(
    {"api_keys", "secrets", "policy", "admin.keys", "limits.exchanges"}
    | {"limits.call_timeout_s", "limits.start_timeout_s", "limits.list_timeout_s", "limits.total_memory_mb"}
)
"""The settings of `gateway` that a reload applies."""

KEPT: Final = frozenset({"policy.trust_announced_workspace", "policy.lock"})
"""Settings below those that need a restart nevertheless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What a new configuration changes in a running gateway. It has names and paths, and no values."""

    added: tuple[str, ...] = ()
    """Names of servers, as in `removed` and `changed`."""
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """Paths of other settings that differ, and that a reload applies."""
    restart: tuple[str, ...] = ()
    """Paths of other settings that differ, and that only a restart applies."""

    @property
    def is_empty(self) -> bool:
        """Return True if a reload changes nothing."""
        return not (self.added or self.removed or self.changed or self.settings)

    @property
    def text(self) -> str:
        """Return the difference in words, without values: these may be credentials."""
        parts = {
            "servers added": self.added,
            "servers removed": self.removed,
            "servers changed": self.changed,
            "settings changed": self.settings,
            "unchanged until a restart": self.restart,
        }
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in parts.items() if names) or "nothing changed"


def difference(old: Settings, new: Settings, restart: Set[str] = KEPT) -> Difference:
    """Return what the configuration `new` changes in a gateway that runs with `old`. `restart`: the paths of settings
    that only a restart of this gateway applies, although they, or the objects around them, are in `_RELOADED`."""
    found = [*_changed(old.gateway, new.gateway)]
    before, after = old.mcpServers, new.mcpServers
    secrets = {
        name
        for name in old.gateway.secrets.keys() | new.gateway.secrets.keys()
        if old.gateway.secrets.get(name) != new.gateway.secrets.get(name)
    }
    return Difference(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(
            name
            for name, entry in after.items()
            if name in before
            and (
                entry != before[name]
                or not secrets.isdisjoint(secrets_in(*entry.env.values(), *entry.headers.values()))
            )
        ),
        settings=tuple(f"gateway.{name}" for name in found if _is_reloaded(name, restart)),
        restart=tuple(f"gateway.{name}" for name in found if not _is_reloaded(name, restart)),
    )


def _changed(old: BaseModel, new: BaseModel, path: str = "", depth: int = 2) -> Iterator[str]:
    """Yield the paths of the settings that differ between two objects of settings. A path has at most `depth` names; a
    difference further inside is named by these. `path`: the path of the two objects, which ends with a dot."""
    for name in type(new).model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if depth > 1 and isinstance(after, BaseModel) and type(before) is type(after):
            yield from _changed(before, after, f"{path}{name}.", depth - 1)
        elif before != after:
            # A lock is applied, but whether there is one is decided at the start.
            yield f"{path}{name}{'.content' if isinstance(before, ToolsLock) and after is not None else ''}"


def _is_reloaded(path: str, restart: Set[str] = KEPT) -> bool:
    return path not in restart and (path in _RELOADED or path.partition(".")[0] in _RELOADED)


def digest(settings: Settings) -> str:
    """Return a digest by which replicas see whether they have the same configuration. It covers the servers in the
    file, those of the file's settings that a reload applies, and the lock. Replicas may differ in all other settings,
    and in the values of variables. Empty if no file was read.

    The digest takes long to compute: it is stored, and from a fast one, short secrets in the file could be guessed.
    """
    origins = settings.gateway.origins
    if origins is None or not origins.document:
        return ""
    gateway = origins.document.get("gateway")
    reloaded = _reloaded_in(gateway) if isinstance(gateway, dict) else {}
    lock = settings.gateway.policy.lock
    locked = {} if lock is None else {"lock": lock.digest}
    text = json.dumps({**origins.document, "gateway": reloaded, **locked}, sort_keys=True, default=str)
    return hashlib.scrypt(text.encode(), salt=b"mcp-session-gateway configuration", n=1 << 12, r=8, p=1, dklen=16).hex()


def _reloaded_in(given: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return those of the settings in `given` that a reload applies. `path`: empty if `given` is the `gateway` object
    of a file; the name of an object inside it, with a dot, if `given` is that object."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, dict) and not path:
            found |= {name: below} if (below := _reloaded_in(value, f"{name}.")) else {}
        elif _is_reloaded(f"{path}{name}"):
            found[name] = value
    return found


def applied(old: Settings, new: Settings, restart: Set[str] = KEPT) -> Settings:
    """Return the configuration that a reload gives a gateway that runs with `old`: `new`, but with the old value of
    each setting that needs a restart (`restart` as in `difference`).

    Raises:
        ConfigurationError: a server has a new fault; whether callers need a credential has changed, which takes a
            restart; or the old and new values are invalid together.
    """
    kept = old.gateway
    if old.gateway.allows_anonymous != new.gateway.allows_anonymous:
        raise ConfigurationError(
            "gateway.api_keys: whether callers need a credential is decided at the start: restart the gateway to "
            f"{'serve callers without one' if new.gateway.allows_anonymous else 'require one'}"
        )
    faulty = {name: faults for name, faults in new.left_out.items() if name not in old.left_out}
    if faulty:
        raise ConfigurationError("\n".join(line for faults in faulty.values() for line in faults))
    given: dict[str, Any] = {}
    for name in GatewaySettings.model_fields:
        paths = [path for path in _changed(kept, new.gateway) if path.partition(".")[0] == name]
        value = getattr(kept, name)
        if name in _RELOADED:
            value = getattr(new.gateway, name)
        # Single settings that are treated unlike their object: the new ones if the object is kept, the old ones if it
        # is new.
        source = kept if name in _RELOADED else new.gateway
        moved = (path for path in paths if "." in path and _is_reloaded(path, restart) is (name not in _RELOADED))
        update = {(part := path.partition(".")[2]): getattr(getattr(source, name), part) for path in moved}
        if update:
            value = value.model_copy(update=update)
        if paths or name in kept.model_fields_set:
            given[name] = value
    return _validated({"mcpServers": new.mcpServers, "gateway": given}, new.gateway.origins)


def _validated(document: Mapping[str, Any], origins: Origins | None) -> Settings:
    try:
        gateway = GatewaySettings.model_validate(document["gateway"], context={"origins": origins})
        return Settings.model_validate({**document, "gateway": gateway})
    except ValidationError as error:
        faults = explained(error, Origins("", {}, {}, {}) if origins is None else origins, Settings)
        raise ConfigurationError(f"{faults}\n(together with the settings that need a restart)") from None
