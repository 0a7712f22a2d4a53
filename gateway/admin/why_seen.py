"""Says in plain sentences why a session sees what it sees. Pure."""

from collections.abc import Iterable, Sequence

from gateway.config.auth import API_KEY_ISSUER, OPERATOR_ISSUER, AuthSettings
from gateway.identity.context_rules import Reason
from session_store import Principal, Session
from transports.era import LEGACY, Era

__all__ = ["about_era", "about_isolation", "about_session", "about_tools"]

_MOST_NAMES = 20


def about_session(
    session: Session,
    served: Sequence[str],
    auth: AuthSettings,
    reasons: Iterable[Reason] | None,
    entries: Sequence[str],
) -> list[str]:
    """The sentences about a session, in the order in which a request is decided. `served` are the servers behind its
    endpoint. `reasons` are those for its context; None if the rules have changed since its last request. `entries` are
    the entries of `gateway.policy.workspaces` that restrict it."""
    told = [_endpoint(session, served), _principal(session.principal, auth), *_context(session, reasons)]
    if entries:
        which = _list([f"gateway.policy.workspaces.{entry}" for entry in entries])
        told.append(f"Its workspace sees what {which} allow{'s' if len(entries) == 1 else ''}.")
    speaks = session.client.protocol_version or "no version that is recorded"
    name = f"{session.client.name} {session.client.version}".strip() or "a client without a name"
    told.append(f"Its client is {name}, which speaks {_era(session.era)} ({speaks}).")
    return told


def _endpoint(session: Session, served: Sequence[str]) -> str:
    if not served:
        return f"It was opened at {session.endpoint}, which this replica does not serve."
    if len(served) == 1:
        return f"It was opened at {session.endpoint}, which serves {served[0]} alone."
    return f"It was opened at {session.endpoint}, which serves {len(served)} servers: {_list(served)}."


def _principal(principal: Principal, auth: AuthSettings) -> str:
    if principal.is_anonymous:
        return "Its principal is anonymous: its client has sent no credential."
    if principal.issuer == API_KEY_ISSUER:
        by = f"its client has sent the key gateway.api_keys.{principal.subject}"
    elif principal.issuer == OPERATOR_ISSUER:
        by = f"the operator {principal.subject} has opened it by trying a tool"
    elif auth.proxies is not None and principal.issuer == auth.proxies.issuer:
        by = f"a trusted proxy names it in the header {auth.proxies.subject_header} (gateway.auth.proxies)"
    elif principal.issuer in (entry.issuer for entry in auth.jwt):
        by = f"its client has sent an access token of {principal.issuer} (gateway.auth.jwt)"
    else:
        by = "by a credential that this configuration does not have any more"
    return f"Its principal is {principal}: {by}."


def _context(session: Session, reasons: Iterable[Reason] | None) -> Iterable[str]:
    context = session.context
    why: dict[str, list[str]] = {}
    for reason in reasons or ():
        why.setdefault(reason.fact, []).append(reason.text)

    def because(fact: str) -> str:
        return f": {'; '.join(why[fact])}" if why.get(fact) else ""

    named = f"Its workspace is {context.workspace}" if context.workspace else "It has no workspace"
    yield f"{named}{because('workspace')}."
    yield f"Its trust is {context.trust}{because('trust')}."
    if context.permissions:
        yield f"Its permissions are {_list(context.permissions)}{because('permissions')}."
    if context.read_only:
        yield f"It is read-only{because('read_only')}."
    yield from (f"Note: {text}." for text in why.get("rules", ()))
    if reasons is None:
        yield "The rules have changed since its last request. The next one applies them."


def about_tools(listed: int | None, visible: int) -> str:
    """How many of the tools of a server a session sees."""
    if listed is None:
        return "Its tools are not known: it has not answered yet, or answers with the credentials of a session only."
    if visible == listed:
        return f"The session sees all of its {listed} tools: no rule hides one." if listed else "It lists no tools."
    return f"The session sees {visible} of its {listed} tools."


def about_isolation(kind: str, *, shared: bool, where: str) -> str:
    """What of a server is the session's own."""
    if kind == "object":
        return "It is an object in the gateway's own process, which all sessions use."
    if kind == "url":
        one = f"one connection for all sessions ({where}.shared)" if shared else "a connection of its own"
        return f"It is behind a URL, and the session has {one}."
    if shared:
        return f"One process is for all sessions ({where}.shared). It learns of the session of a call from _meta alone."
    return "The session has a process of its own, which ends with the session."


def about_era(client: str, server: Era | None) -> str:
    """What the gateway does between client and server."""
    if server is None:
        return "It is not known yet in which era it speaks."
    if client == server:
        return f"It speaks {_era(server)} as the client does, so messages pass as they are."
    return f"It speaks {_era(server)} and the client {_era(client)}: the gateway translates."


def _era(era: str) -> str:
    return "MCP with a handshake" if era == LEGACY else "MCP 2026-07-28"


def _list(names: Iterable[str]) -> str:
    known = list(names)
    more = [f"{len(known) - _MOST_NAMES} more"] if len(known) > _MOST_NAMES else []
    return ", ".join([*known[:_MOST_NAMES], *more])
