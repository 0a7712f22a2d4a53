"""The page of a session has what its servers were refused, and not without end."""

from gateway.sandbox.refused import MAX_TOLD, Refusal
from gateway.sandbox.session_refusals import MOST_ROWS_OF_ALL
from tests.requirements import requirement
from tests.unit.sandbox.test_refused import CONNECT, Told


@requirement("box.refusals-seen")
def test_the_page_of_a_session_has_what_its_servers_were_refused() -> None:
    told = Told()
    process = told.process("abcdefgh")
    told.process("").add(CONNECT)  # a process of no session
    for second in range(100):
        told.now = float(second)
        process.add(CONNECT)
    process.add(Refusal("process", "kill", "a process that the server did not start"))
    rows = [(row.at, row.server, row.kind, row.what, row.allows, row.count) for row in told.shown.of("abcdefgh")]
    assert sorted(rows) == [
        (99.0, "x", "connect", "10.0.0.5:443", 'sandbox.reach = ["10.0.0.5:443"]', 100),
        (99.0, "x", "process", "kill", "", 1),
    ]
    for port in range(5_000):
        process.add(Refusal("connect", f"10.0.0.6:{port}", "a private address"))
    rest = [row for row in told.shown.of("abcdefgh") if row.kind == "other"]
    assert len(told.shown.of("abcdefgh")) == MAX_TOLD + 1
    assert [(row.what, row.allows, row.count) for row in rest] == [("", "", 5_000 - MAX_TOLD + 2)]
    told.shown.forget("abcdefgh")
    assert told.shown.of("abcdefgh") == [] == told.shown.of("")


@requirement("box.refusals-seen")
def test_what_processes_of_an_ended_session_are_refused_is_not_kept() -> None:
    told = Told()
    process = told.process("abcdefgh")
    process.add(CONNECT)
    told.shown.forget("abcdefgh")
    process.add(CONNECT)  # the gate sends its last refusals when the process ends, which is later
    assert told.shown.of("abcdefgh") == []
    assert told.counts == {"connect": 2}, "counted all the same"
    told.now = 61.0
    told.process("abcdefgh").add(CONNECT)  # another replica had it meanwhile
    assert [row.count for row in told.shown.of("abcdefgh")] == [1]


@requirement("box.refusals-seen")
def test_refusals_of_all_sessions_have_one_bound() -> None:
    told = Told()
    honest = told.process("honest")
    sessions = [f"session-{number}" for number in range(MOST_ROWS_OF_ALL // MAX_TOLD + 50)]
    for session in sessions:
        hostile = told.process(session)
        honest.add(CONNECT)
        for port in range(MAX_TOLD):
            hostile.add(Refusal("connect", f"10.0.0.6:{port}", "a private address"))
    rows = {session: len(told.shown.of(session)) for session in (*sessions, "honest")}
    assert MOST_ROWS_OF_ALL - MAX_TOLD <= sum(rows.values()) <= MOST_ROWS_OF_ALL
    assert rows["session-0"] == 0 and rows[sessions[-1]] == MAX_TOLD
    assert rows["honest"] == 1, "it was refused something lately"
    for session in (*sessions, "honest"):
        told.shown.forget(session)
    assert sum(len(told.shown.of(session)) for session in sessions) == 0
