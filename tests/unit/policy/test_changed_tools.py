"""Calls of tools that have changed since the session was shown them."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from gateway.config.policy import PolicySettings
from gateway.context.session_facts import CHANGED_KEY
from gateway.observability.audit import Audit
from gateway.policy.changed_tools import ChangedTools
from gateway.protocol.merged_lists import Tools
from gateway.protocol.params import meta_of
from gateway.protocol.shown_tool_hashes import ShownTools
from session_store import MemoryBackend
from tests.requirements import requirement
from tests.support.fake_upstream import a_live
from transports.inbound_port import Refused

pytestmark = requirement("live.tools-fixed")

READ, OTHER = {"name": "read", "description": "Read."}, {"name": "read", "description": "Read. Send."}
WRITE = {"name": "write"}


def nested(depth: int) -> dict[str, Any]:
    item: dict[str, Any] = {}
    for _ in range(depth):
        item = {"a": item}
    return item


class Changed:
    """A session, and what decides on its calls of the tools of server "s"."""

    def __init__(self, mode: str) -> None:
        self.counted: Counter[str] = Counter()
        self.audit = Audit(MemoryBackend().audit, lambda: 0.0)
        self.happened: list[tuple[str, str]] = []
        self.written: list[str] = []
        self.live = a_live()
        self.tools = ChangedTools(
            self.audit,
            PolicySettings.model_validate({"changed_tools": mode}),
            self.counted,
            lambda live, server, name: self.happened.append((server, name)),
            lambda live: self.written.append(live.shown.text),
        )

    def listed(self, *tools: dict[str, Any]) -> frozenset[str]:
        return self.tools.listed(self.live, "s", tools)

    def called(self, *tools: dict[str, Any], name: str = "read", is_own: bool = True) -> Any:
        return self.tools.called(self.live, "s", Tools(tools), name, is_own=is_own)

    def said(self, note: Any) -> dict[str, Any]:
        meta = meta_of(note(None, {"content": msgspec.Raw(b"[]")}))
        return {key: msgspec.json.decode(value) for key, value in meta.items()}


@pytest.mark.parametrize("mode", ["allow", "tell"])
def test_a_session_that_was_shown_nothing_has_nothing_to_compare(mode: str) -> None:
    it = Changed(mode)
    assert it.called(READ, is_own=False) == it.called(OTHER, is_own=False) == "same"
    it.listed(WRITE)
    assert it.called(OTHER) == "same", "new tools are no change"
    assert not it.counted and not it.happened


def test_where_changes_are_refused_the_list_of_the_first_call_counts_as_shown() -> None:
    it = Changed("refuse")
    assert it.called(READ, WRITE, is_own=False) == "unknown", "its own process is asked"
    assert it.called(READ, WRITE) == "same" and it.written, "also for other replicas"
    assert it.listed(OTHER, WRITE) == {"read"}
    with pytest.raises(Refused):
        it.called(OTHER, WRITE)
    assert it.called(OTHER, {"name": "new"}, name="new") == "same" and it.called(OTHER, name="gone") == "same"


def test_a_changed_tool_is_told_once_and_only_by_a_result_that_the_client_gets() -> None:
    it = Changed("tell")
    assert it.listed(READ) == frozenset() and it.called(READ) == "same"
    assert it.listed(OTHER) == frozenset(), "the client sees it as it is"
    first, second = it.called(OTHER), it.called(OTHER)
    assert not it.happened, "no result has come yet"
    assert it.said(second) == {CHANGED_KEY: {"reason": "tool_changed"}} and it.said(first) == {}
    assert it.called(OTHER) == "same" and it.happened == [("s", "read")]
    assert it.said(it.called(READ)) != {}, "it changes back"
    assert it.counted == {"tell": 2} and it.audit.counts["changed"] == 2


def test_an_allowed_change_is_only_marked(caplog: pytest.LogCaptureFixture) -> None:
    it = Changed("allow")
    it.listed(READ)
    assert it.called(OTHER) == "same" and it.happened == [("s", "read")]
    assert it.listed(READ) == frozenset() and it.happened == [("s", "read")] * 2
    assert it.counted == {"allow": 2} and not it.written, "no other replica needs it"
    assert "tool s/read: it has changed in sessions that were shown it: its calls go on" in caplog.text


def test_a_refused_tool_stays_refused_and_absent_whatever_the_client_lists(caplog: pytest.LogCaptureFixture) -> None:
    it = Changed("refuse")
    assert it.listed(READ, WRITE) == frozenset()
    for _ in range(3):
        with pytest.raises(Refused, match="Tool read has changed since it was listed") as refused:
            it.called(OTHER, WRITE)
        assert refused.value.reason == "tool_changed"
        assert it.listed(OTHER, WRITE) == {"read"}
    assert it.called(OTHER, WRITE, name="write") == "same"
    assert it.happened == [("s", "read")], "a client that calls it again and again is notified once"
    assert it.counted == {"refuse": 1} and caplog.text.count("neither see nor call it") == 1
    assert it.called(READ) == "same" and it.listed(READ) == frozenset(), "it is again what was shown"
    with pytest.raises(Refused):
        it.called(WRITE)  # the server does not list it any more
    with pytest.raises(Refused):
        it.called(READ, OTHER)  # in two forms


def test_a_list_of_another_process_does_not_refuse_and_under_refuse_does_not_admit() -> None:
    tells, refuses = Changed("tell"), Changed("refuse")
    for it in (tells, refuses):
        it.listed(READ)
        assert it.called(OTHER, is_own=False) == "unknown"
    assert tells.called(READ, is_own=False) == "same" and refuses.called(READ, is_own=False) == "unknown"


def test_a_removed_tool_is_no_change_unless_changes_are_refused() -> None:
    it = Changed("tell")
    it.listed(READ)
    assert it.called(WRITE) == "same" and not it.counted


def test_a_tool_that_cannot_be_compared_later_is_not_shown_where_changes_are_refused() -> None:
    deep = {"name": "deep", "inputSchema": nested(5_000)}
    assert Changed("refuse").listed(READ, deep) == {"deep"}
    assert Changed("tell").listed(READ, deep) == frozenset()


@pytest.mark.parametrize(
    "odd", [10**400, {"a": 1.5, "b": "\U0001f600" * 200_000}], ids=["a long number", "a long text"]
)
def test_what_no_lock_could_compare_is_compared(odd: Any) -> None:
    it, other = Changed("tell"), OTHER | {"x": odd}
    it.listed(READ | {"x": odd})
    assert it.called(READ | {"x": odd}) == "same"
    assert it.said(it.called(other)) != {} and it.called(other) == "same"


def test_what_is_shown_is_written_until_the_record_has_it() -> None:
    it = Changed("tell")
    it.listed(READ)
    it.listed(READ)
    assert it.written == [it.live.shown.text] * 2
    it.live.session = msgspec.structs.replace(it.live.session, shown=it.live.shown.text)
    it.listed(READ)
    assert len(it.written) == 2


def test_a_reload_changes_what_is_done() -> None:
    it = Changed("allow")
    it.listed(READ)
    it.tools.replace(PolicySettings(changed_tools="refuse"))
    with pytest.raises(Refused):
        it.called(OTHER)


def test_a_call_writes_what_is_shown_if_the_store_did_not_answer_before() -> None:
    for mode in ("tell", "refuse"):
        it = Changed(mode)
        it.listed(READ)
        assert it.called(READ) == "same" and it.written == [it.live.shown.text] * 2


@pytest.mark.parametrize("mode", ["allow", "tell"])
def test_a_tool_in_two_forms_takes_no_place_in_the_record(mode: str) -> None:
    it = Changed(mode)
    it.listed(READ, *({"name": f"t{n}"} for n in range(5)))
    before = it.live.shown
    for _ in range(2):
        note = it.called(READ, OTHER)
        assert note == "same" if mode == "allow" else it.said(note) != {}, "each result says so"
    assert it.live.shown is before is ShownTools.read(before.text) and not it.happened
