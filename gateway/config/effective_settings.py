"""List the settings in effect, each with its value as text and its source (file, variable or default). Pure: no I/O.

No credential is shown. All values of environments and headers are hidden, and so is every value that has the name or
the form of a credential.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.config.load import Origins
from gateway.config.secrets import PLACEHOLDER
from gateway.config.settings import GatewaySettings, Settings
from gateway.config.upstreams import UpstreamSettings
from session_store.connect import shown as without_password
from session_store.redaction import REDACTED, scrubbed_text, secret_arguments

DEFAULT: Final = "default"
_BY_PROGRAM: Final = "the program"
_HIDDEN: Final = "[hidden]"
_SECRET_VALUES: Final = frozenset({"env", "headers"})
"""Objects whose values can be credentials, whatever the names in them are."""

_DIGESTS: Final = frozenset({"api_keys", "keys"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """A setting in effect. `name`: its full path, such as `gateway.session.idle_ttl_s`. `origin`: the file, variable or
    option that gives it, or `DEFAULT`."""

    name: str
    value: str
    origin: str

    @property
    def is_set(self) -> bool:
        """Return True if the file, a variable or an option gives the setting; False if it has its default."""
        return self.origin != DEFAULT


def effective(settings: Settings) -> dict[str, list[EffectiveSetting]]:
    """Return the settings in effect, in groups. The key of a group is the path of its object in the configuration.
    First come `gateway` and its objects, with all their settings. Then come the servers, with the given settings
    that differ from the defaults, and their faults."""
    origins = settings.gateway.origins
    found: dict[str, list[EffectiveSetting]] = {}
    for one in _of_object("", settings.gateway, GatewaySettings(), origins):
        top, name, *inner = one.name.split(".")  # what is deeper stands with its object of `gateway`
        found.setdefault(f"{top}.{name}" if inner else top, []).append(one)
    return found | {f"mcpServers.{name}": _of_server(name, one, origins) for name, one in settings.mcpServers.items()}


def _of_object(above: str, values: BaseModel, default: Any, origins: Origins | None) -> Iterator[EffectiveSetting]:
    for name, field in type(values).model_fields.items():
        value, usual = getattr(values, name), getattr(default, name, _default_of(field))
        if isinstance(value, BaseModel):
            yield from _of_object(f"{above}{name}.", value, usual, origins)
        else:
            yield _one(f"{above}{name}", value, usual, origins)


def _one(path: str, value: Any, default: Any, origins: Origins | None) -> EffectiveSetting:
    given = () if origins is None else origins.places_of(path)
    if origins is not None and not given and value != default:  # a word in place of the object around it, as `off`
        given = origins.places_of(path.rpartition(".")[0])
    origin = given[-1] if given else DEFAULT if value == default else _BY_PROGRAM
    return EffectiveSetting(name=f"gateway.{path}", value=shown_value(path.rpartition(".")[2], value), origin=origin)


def _default_of(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True)


def _of_server(name: str, entry: UpstreamSettings, origins: Origins | None) -> list[EffectiveSetting]:
    """Return the settings of a server that the operator has given, without defaults, and a row for each fault because
    of which the server is left out."""
    place = (None if origins is None else origins.file) or _BY_PROGRAM
    found = [
        EffectiveSetting(name=f"mcpServers.{name}", value=f"left out: {fault}", origin=place) for fault in entry.faults
    ]
    for setting, field in UpstreamSettings.model_fields.items():
        value = getattr(entry, setting)
        if setting in entry.model_fields_set and value != _default_of(field):
            text = shown_value(setting, value)
            found.append(EffectiveSetting(name=f"mcpServers.{name}.{setting}", value=text, origin=place))
    return found


def shown_value(name: str, value: Any) -> str:
    """Return the value of a setting as text for people, without credentials. `name` is the setting's last name: it
    tells which values are hidden, such as those of `env`."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and name == "store":
        return without_password(value)
    clean = _clean(name, _plain(value))
    if isinstance(clean, str):
        return clean or "empty"
    if not isinstance(clean, list | dict):
        return f"{clean:g}" if isinstance(clean, float) else str(clean)
    if not clean:
        return "none"
    if isinstance(clean, list) and all(isinstance(one, str) for one in clean):
        return " ".join(clean) if name == "args" else ", ".join(clean)
    return json.dumps(clean, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Return a value converted to JSON types. Of objects of settings inside it, only the given fields remain."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def _clean(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        if name in _SECRET_VALUES:
            return {key: _hidden(inner) for key, inner in value.items()}
        if name in _DIGESTS:
            return {key: _count(inner) for key, inner in value.items()}
        return {key: _clean(key, inner) for key, inner in value.items()}
    if isinstance(value, list):
        texts = [one for one in value if isinstance(one, str)]
        secrets = secret_arguments(texts)
        return [_redacted(one, secrets) if isinstance(one, str) else _clean(name, one) for one in value]
    return _redacted(value, secret_arguments([value])) if isinstance(value, str) else value


def _redacted(text: str, secrets: set[str]) -> str:
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return scrubbed_text(text)


def _hidden(value: Any) -> str:
    """Return the text to show in place of a value that may be a credential. A reference to a secret, such as
    `${secret:NAME}`, is returned unchanged."""
    found = PLACEHOLDER.fullmatch(value) if isinstance(value, str) else None
    return found[0] if found and not found[1] else _HIDDEN


def _count(digests: Any) -> str:
    number = len(digests) if isinstance(digests, list) else 1
    return f"{number} key{'' if number == 1 else 's'}"
