"""The page of a session has what its servers were refused, and not without end."""

from gateway.sandbox.refused import MAX_TOLD, Refusal
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
