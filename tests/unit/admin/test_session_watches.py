"""Whose messages an operator sees, for what reason, and what is recorded."""

from typing import Any

import pytest

from gateway.admin.query_types import OperatorError, TooLate
from gateway.admin.report_types import FrameQuery, FrameReport, FramesPage, StderrPage
from gateway.admin.session_watches import MOST_REASON_CHARS
from gateway.admin.verb_handlers import Operations
from gateway.calls.messages_for_operators import SeenFrame, StderrLine
from gateway.config.settings import Settings
from session_store import MemoryBackend, Principal
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.credentials import sha256
from tests.unit.admin.test_verb_handlers import FakeReplicas, operations_of

pytestmark = requirement("ops.frames-reason")

THEIRS, OWN = "aaaaaaaa-of-a-client", "bbbbbbbb-of-olga"
FRAME = SeenFrame(number=1, at=1.0, direction="client to gateway", kind="request", body="an argument")
LINE = StderrLine(number=1, server="files", text="a line")


class WatchedReplica(FakeReplicas):
    """A replica that has both sessions, and sees one message in each that is watched."""

    def __init__(self) -> None:
        super().__init__()
        self.by: dict[str, str] = {}
        self.answers = True

    async def answer_watch(self, session_id: str, by: str) -> FrameReport | None:
        self.by[session_id] = by
        return await self.answer_frames(FrameQuery(session=session_id)) if self.answers else None

    async def answer_unwatch(self, session_id: str) -> bool:
        return self.by.pop(session_id, "") != ""

    async def answer_frames(self, query: FrameQuery) -> FrameReport:  # type: ignore[override]  # it has sessions
        by = self.by.get(query.session, "")
        if not by:
            return FrameReport(stderr=StderrPage(watched=False, lines=[LINE]))
        return FrameReport(
            frames=FramesPage(watched=True, by=by, frames=[FRAME]), stderr=StderrPage(watched=True, by=by, lines=[LINE])
        )


class Watching:
    """Operations where `admin.frames` is `frames`, and what they have recorded."""

    def __init__(self, frames: str | None, **gateway: Any) -> None:
        self.replica = WatchedReplica()
        self.recorded: list[str] = []
        self._clock = FakeClock()
        self._backend = MemoryBackend(clock=self._clock)
        settings = Settings.model_validate({"gateway": {"admin": {"frames": frames}, **gateway}})
        self.operations: Operations = operations_of(
            self._backend, self.replica, self._clock, settings=settings, record=self._record
        )

    def _record(self, *, reason: str, session: Any) -> None:
        self.recorded.append(f"{session.id[:8]}: {reason}")

    async def begun(self) -> "Watching":
        olga = Principal(issuer="operator", subject="olga")
        await self._backend.sessions.create(a_session(self._clock, id=THEIRS))
        await self._backend.sessions.create(a_session(self._clock, id=OWN, principal=olga))
        return self

    async def sees(self, by: str, session: str = THEIRS) -> bool:
        """Whether an operator sees messages, which is the same on every way to them."""
        view = await self.operations.watches.both(session, by, frames=9, lines=9)
        shown = [view is not None and bool(view.report.frames.frames), view is not None and view.report.stderr.watched]
        for read in (self.operations.frames, self.operations.stderr):
            try:
                page = await read(session, by)
            except OperatorError:
                shown.append(False)
            else:
                shown.append(page.watched and bool(page.frames if isinstance(page, FramesPage) else page.lines))
        assert len(set(shown)) == 1, shown
        return shown[0]


async def test_a_session_of_others_is_seen_for_a_reason_by_the_operator_who_gave_it() -> None:
    it = await Watching("with_reason").begun()
    for reason in ("", " \n", "x" * (MOST_REASON_CHARS + 1)):
        with pytest.raises(OperatorError, match="reason"):
            await it.operations.switch_frames_on(THEIRS, "olga", reason)
    with pytest.raises(OperatorError, match="give a `reason`"):
        await it.operations.switch_frames_on(THEIRS, "", "nobody asks")
    assert not it.replica.by and not it.recorded and not await it.sees("olga")

    assert (await it.operations.switch_frames_on(THEIRS, "olga", " ticket\n 17 ")).by == "olga"
    assert it.recorded == ["aaaaaaaa: the operator olga has switched on its frames: ticket 17"]
    assert await it.sees("olga") and not await it.sees("otto") and not await it.sees("")
    with pytest.raises(OperatorError, match="the operator olga watches this session: give a `reason` of your own"):
        await it.operations.frames(THEIRS, "otto")
    with pytest.raises(OperatorError, match="give a `reason`"):
        await it.operations.switch_frames_on(THEIRS, "otto")

    it.replica.by.clear()  # ten minutes later
    assert not await it.sees("olga")
    with pytest.raises(OperatorError, match="give a `reason`"):
        await it.operations.switch_frames_on(THEIRS, "olga")


async def test_one_operator_at_a_time_sees_the_session_and_every_operator_may_end_that() -> None:
    it = await Watching("with_reason").begun()
    await it.operations.switch_frames_on(THEIRS, "olga", "one")
    await it.operations.switch_frames_on(THEIRS, "otto", "two")
    assert await it.sees("otto") and not await it.sees("olga")
    assert not (await it.operations.switch_frames_off(THEIRS, "olga")).watched
    assert not it.replica.by and it.recorded[-1] == "aaaaaaaa: the operator olga has switched off its frames"


@requirement("ops.frames")
@pytest.mark.parametrize(
    ("frames", "of_others", "of_own"),
    [("any", True, True), ("with_reason", False, True), ("own", False, True), ("off", False, False)],
)
async def test_the_setting_decides_without_a_reason_and_only_one_of_them_takes_reasons(
    frames: str, of_others: bool, of_own: bool
) -> None:
    it = await Watching(frames).begun()
    for session, may in ((THEIRS, of_others), (OWN, of_own)):
        if may:
            await it.operations.switch_frames_on(session, "olga")
        else:
            with pytest.raises(OperatorError):
                await it.operations.switch_frames_on(session, "olga", "" if frames == "with_reason" else "a reason")
        it.replica.by[session] = "otto"  # somebody else watches it, at a replica with another setting
        assert await it.sees("olga", session) is may


async def test_the_default_takes_reasons_unless_operator_and_client_are_one_person() -> None:
    alone = await Watching(None).begun()
    assert (await alone.operations.switch_frames_on(THEIRS, "olga")).watched
    for others in ({"api_keys": {"ann": sha256("a client")}}, {"allowed_hosts": ["gateway.example"]}):
        served = await Watching(None, **others).begun()
        with pytest.raises(OperatorError, match="give a `reason`"):
            await served.operations.switch_frames_on(THEIRS, "olga")


async def test_what_may_have_begun_is_recorded() -> None:
    it = await Watching("with_reason").begun()
    it.replica.answers = False
    with pytest.raises(TooLate):
        await it.operations.switch_frames_on(THEIRS, "olga", "ticket 17")
    assert it.recorded == ["aaaaaaaa: the operator olga has tried to switch on its frames: ticket 17"]
