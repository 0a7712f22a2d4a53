"""What operators are shown of the environment of a session's servers, as values that travel between replicas and out by
REST. No id is whole, and no secret is in it.
"""

from typing import Any, Literal

import msgspec

__all__ = ["HiddenTools", "Origin", "ServerEnvironment", "SessionEnvironment", "Variable"]

Origin = Literal["inherited", "sandbox", "package", "session", "rule", "configuration", "secret", "gateway"]
"""Where a variable or a header comes from: the gateway's own environment, the sandbox, the package that the command
names, the context of the session, a rule of the policy, the configuration of the server, a secret of the principal, or
the gateway itself."""


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """An environment variable of a process, or a header. `where` is the setting or the field that it comes from.
    `value` is None if it is not shown."""

    name: str
    origin: Origin
    where: str = ""
    value: str | None = None


class HiddenTools(msgspec.Struct, frozen=True, kw_only=True):
    """Tools of one server that a session does not see for one reason: how many, and the first of their names."""

    reason: str
    count: int
    names: list[str] = []


class ServerEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """One server of a session.

    `kind`: `command`, `url` or `object`. `hidden`: why the session does not see it; empty if it does. `shared`: one
    process or connection is for all sessions. `pid`: its process; None if none runs. `injected`: variables, folders and
    profile are those of a link that is open; otherwise they are what the next one will get, as far as that is known.
    `cwd`, `home` and `temporary` are folders. `sandbox` is the profile in the lines of `sandbox explain`,
    and `holds` the same as data. `tools`: how many it lists; None if that is not known. `visible_tools`: how many of
    them the session sees. `era`: in which the gateway speaks with it; empty if that is not known yet. `why`: sentences.
    """

    server: str
    kind: str
    hidden: str = ""
    shared: bool = False
    era: str = ""
    pid: int | None = None
    injected: bool = False
    cwd: str = ""
    home: str = ""
    temporary: str = ""
    profile: str = ""
    sandbox: list[str] = []
    holds: dict[str, Any] = {}
    variables: list[Variable] = []
    headers: list[Variable] = []
    more_variables: int = 0
    tools: int | None = None
    visible_tools: int = 0
    hidden_tools: list[HiddenTools] = []
    why: list[str] = []


class SessionEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """What the servers of a session were given, and why the session sees what it sees.

    `replica`: which one says so. `held`: it serves the session; otherwise it says what the record and its own
    configuration say. `why`: sentences about the session, in the order in which a request is decided. `more_servers`:
    how many servers are left out.
    """

    session: str
    replica: str
    held: bool
    endpoint: str
    principal: str
    trust: str
    why: list[str] = []
    servers: list[ServerEnvironment] = []
    more_servers: int = 0
