"""Decide on lists and calls of tools that have changed since the session's client saw them
(docs/adr/0045-tools-lock.md)."""

import functools
import logging
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from gateway.config.policy import PolicySettings
from gateway.context.session_facts import CHANGED_KEY, with_meta
from gateway.errors import changed_tool
from gateway.observability.audit import Audit
from gateway.observability.escaped_text import shortened_line
from gateway.policy.operator_message_limits import MOST_NAME, LoggedItems
from gateway.protocol.cache_hints import of_one_session
from gateway.protocol.item_digests import form_of
from gateway.protocol.merged_lists import Tools
from gateway.protocol.shown_tool_hashes import ShownTools
from session_store import Session
from transports.jsonrpc import Object, encode

logger = logging.getLogger(__name__)

_THEN: Final = {
    "allow": "its calls go on",
    "tell": "the next result of the tool says so",
    "refuse": "these neither see nor call it any more",
}
_NOTE: Final = msgspec.Raw(encode({"reason": "tool_changed"}))


Note = Callable[[Any, Object], Object]
"""A function that adds a note about a changed tool to a call's result
(`gateway.calls.exchange.Exchange.filter_result`)."""


class ShownSession(Protocol):
    """The part of a session (`gateway.calls.live_session.LiveSession`) on which the decision depends."""

    @property
    def session(self) -> Session: ...
    @property
    def shown(self) -> ShownTools: ...
    def record_shown_tools(self, shown: ShownTools) -> None: ...
    def record_lost_tool(self, server: str, name: str) -> bool: ...


class ChangedTools:
    """Compare the tools that servers list now with those that a session's client has seen.

    `counted`: where changed tools are counted, by the value of the setting `policy.changed_tools`. `tool_changed` is
    called with a session, a server and the name of a tool that has changed in the session. `remember` is called with a
    session, and writes the tools that it was shown into its record.
    """

    def __init__(
        self,
        audit: Audit,
        settings: PolicySettings,
        counted: MutableMapping[str, int],
        tool_changed: Callable[[Any, str, str], None],
        remember: Callable[[Any], None],
    ) -> None:
        self._audit = audit
        self._counted = counted
        self._tool_changed = tool_changed
        self._remember = remember
        self._logged = LoggedItems()
        self.replace(settings)

    def replace(self, settings: PolicySettings) -> None:
        """Decide by these settings from now on."""
        self._mode = settings.changed_tools
        self.refuses = self._mode == "refuse"

    def listed(self, live: ShownSession, server: str, tools: Sequence[dict[str, Any]]) -> frozenset[str]:
        """Record that a server lists these tools to a session. Return the names of those tools that the session must
        not see, because they have changed."""
        page = [(tool["name"], form_of(tool)) for tool in tools]
        changed = {name: form for name, form in page if live.shown.form(server, name) not in (None, form)}
        for name, form in changed.items():
            self._tell(server, name, form)
            if self._mode == "allow":
                self._accept(live, server, name, form)
        self._show(live, live.shown.with_page(server, tuple(page)))
        if not self.refuses:
            return frozenset()
        # What cannot be compared later must not be shown now.
        return frozenset(changed) | {name for name, _ in page if live.shown.form(server, name) is None}

    def called(
        self, live: ShownSession, server: str, tools: Tools, name: str, *, is_own: bool
    ) -> Note | Literal["same", "unknown"]:
        """Decide on a call of a tool by comparing `tools`, the server's list, with what the session was shown.

        If the tool is unchanged or new, or if the settings allow changes, return "same". If it has changed, return a
        function that adds a note to the call's result. `is_own`: the session's own process or connection has sent the
        list. A difference to any other list does not prove a change: then return "unknown".

        Raises:
            Refused: the tool has changed, and such calls are refused.
        """
        self._show(live, live.shown)  # the record may lack it, if the store did not answer
        if self.refuses:
            return self._refused_if_changed(live, server, tools, name, is_own=is_own)
        before, form = live.shown.form(server, name), tools.form(name)
        if before is None or form is None or form == before:
            return "same"
        if not is_own:
            return "unknown"
        self._tell(server, name, form)
        if self._mode == "allow":
            self._accept(live, server, name, form)
            return "same"
        return functools.partial(self._with_note, live, server, name, form)

    def _refused_if_changed(
        self, live: ShownSession, server: str, tools: Tools, name: str, *, is_own: bool
    ) -> Literal["same", "unknown"]:
        """Decide as `called` under the setting that refuses calls of changed tools: raise `Refused` if the tool has
        changed. If the session was shown no tool of the server, the present list counts as shown: modern clients list
        tools before they have a session, and would otherwise see a list only after a change."""
        form = tools.form(name)
        if form != b"" and live.shown.has_list_of(server) and live.shown.form(server, name) is None:
            return "same"  # a new tool
        if not is_own:
            return "unknown"
        if not live.shown.has_list_of(server):
            self.listed(live, server, tools.listed)
        before = live.shown.form(server, name)
        if form == before and form != b"":
            return "same"
        self._tell(server, name, form or b"")
        if live.record_lost_tool(server, name):
            self._tool_changed(live, server, name)
        raise self._audit.refused(
            changed_tool(name),
            live.session,
            why="it has changed since the session was shown it (gateway.policy.changed_tools)",
            tool=f"{server}/{name[:MOST_NAME]}",
        )

    def _with_note(self, live: ShownSession, server: str, name: str, form: bytes, _: object, result: Object) -> Object:
        if live.shown.form(server, name) == form:
            return result  # the result of another call has said it
        self._accept(live, server, name, form)
        return with_meta(of_one_session(result), {CHANGED_KEY: _NOTE})

    def _accept(self, live: ShownSession, server: str, name: str, form: bytes) -> None:
        """Record that the session was shown a changed tool in its present `form` (the hash of its content). A tool that
        the server lists in two forms has an empty `form`, and cannot be recorded: the next result has the note
        again."""
        if not form:
            return
        self._show(live, live.shown.with_tool(server, name, form))
        self._tool_changed(live, server, name)

    def _show(self, live: ShownSession, shown: ShownTools) -> None:
        if shown is not live.shown:
            live.record_shown_tools(shown)
        if self._mode != "allow" and shown.text != live.session.shown:
            self._remember(live)

    def _tell(self, server: str, name: str, form: bytes) -> None:
        """Log and audit a changed tool for operators, once for each form (hash of its content)."""
        if not self._logged.is_new(server, ("tools", name, form.hex())):
            return
        self._counted[self._mode] += 1
        if self._logged.has_room(server, ("tools", name, "")):
            tool = f"{server}/{shortened_line(name, MOST_NAME)}"
            what = f"it has changed in sessions that were shown it: {_THEN[self._mode]} (gateway.policy.changed_tools)"
            logger.warning("tool %s: %s", tool, what, extra={"server": server})
            self._audit.changed(tool, what)
