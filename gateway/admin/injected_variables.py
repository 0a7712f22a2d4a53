"""Which variables a process has, and where each comes from. Pure.

A value is shown if nobody can have put a secret into it: variables that the gateway lets every process inherit, fields
that every session has, folders, and what the sandbox sets. Values of the configuration, of rules, of the operator's own
fields and of packages are not.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.admin.reports import Origin, Variable
from gateway.config.context import BUILT_IN, EnvironmentValue
from gateway.context.secrets import is_template, secrets_in
from session_store.metadata import scrubbed_text
from session_store.session import redact
from session_store.tool_session import ACCESS_VARIABLE, FACTS_VARIABLE, SOCKET_VARIABLE

__all__ = ["Sources", "headers_of", "variables_of"]

_MOST_CHARS: Final = 300
_OWN: Final[Mapping[str, str]] = {
    SOCKET_VARIABLE: "the socket to the state of the session",
    ACCESS_VARIABLE: "the credential for that socket",
    FACTS_VARIABLE: "the facts of the session as JSON",
}
_SHOWN: Final = frozenset({"inherited", "sandbox"})
_OF_SANDBOXES: Final = ("HOME", "TMPDIR", "RES_OPTIONS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What decides the variables of one server's process for one session. A later one wins.

    `inherited`: from the gateway's environment. `sandbox`: what the sandbox sets; None if there is none. `names`: the
    fields of the session by variable; `rules`: the value and the setting by variable. Both are empty for a process that
    belongs to no session. `own`: the server's `env`, which the setting `where` has.
    """

    where: str
    inherited: Mapping[str, str] = field(default_factory=dict)
    sandbox: Mapping[str, str] | None = None
    names: Mapping[str, EnvironmentValue] = field(default_factory=dict)
    rules: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    is_of_session: bool = True

    @property
    def known(self) -> Iterable[str]:
        """The names that a process has in any case."""
        sandbox = () if self.sandbox is None else (*_OF_SANDBOXES, *self.sandbox)
        ours = tuple(_OWN) if self.is_of_session else ()
        return {*self.inherited, *sandbox, *self.names, *self.rules, *ours, *self.own}

    def of(self, name: str) -> tuple[Origin, str]:
        """Where a variable comes from."""
        if name in self.own:
            return _configured(self.own[name], self.where)
        if name in _OWN and self.is_of_session:
            return "gateway", _OWN[name]
        if name in self.rules:
            value, where = self.rules[name]
            return _configured(value, where, "rule")
        if name in self.names:
            return "session", self.names[name].field
        if self.sandbox is not None and (name in _OF_SANDBOXES or name in self.sandbox):
            return "sandbox", "the profile of the sandbox"
        if name in self.inherited:
            return "inherited", "the gateway's own environment"
        return "package", "what npx or uvx would set"


def variables_of(sources: Sources, given: Mapping[str, str] | None) -> Iterator[Variable]:
    """The variables in order of name. `given` is what the gateway gave a process that runs, beside what it inherits and
    the server's `env`; None: no process runs, and only the names are known."""
    present = {**sources.inherited, **(given or {})}
    for name in sorted({*sources.known, *present}):
        origin, where = sources.of(name)
        is_known = given is not None or origin == "inherited"
        value = _shown(sources, name, origin, where, present.get(name)) if is_known else None
        yield Variable(name=name, origin=origin, where=where, value=value)


def _shown(sources: Sources, name: str, origin: Origin, where: str, value: str | None) -> str | None:
    """A value as operators see it; None: it is not shown."""
    if value is None or not (origin in _SHOWN or name == SOCKET_VARIABLE or where in BUILT_IN):
        return None
    if where == "session_id":
        value = redact(value)
    return scrubbed_text(value)[:_MOST_CHARS]


def headers_of(configured: Mapping[str, str], where: str, assertion: str) -> list[Variable]:
    """The headers that requests to a server behind a URL have: the configured ones, and the gateway's assertion."""
    found = []
    for name, value in configured.items():
        origin, source = _configured(value, where)
        found.append(Variable(name=name, origin=origin, where=source))
    return [*found, Variable(name=assertion, origin="gateway", where="a signed statement of the session's context")]


def _configured(value: str, where: str, origin: Origin = "configuration") -> tuple[Origin, str]:
    if not is_template(value):
        return origin, where
    return "secret", f"{where}, with {', '.join(f'gateway.secrets.{name}' for name in secrets_in(value))}"
