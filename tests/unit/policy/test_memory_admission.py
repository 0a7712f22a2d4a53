"""The memory of server processes: what each counts, when it is short, and when another is refused."""

import contextlib
from collections import Counter
from collections.abc import Collection, Mapping

import pytest

from gateway.observability.process_memory import MachineMemory
from gateway.policy.memory_admission import ASSUMED_BYTES, GROWN_S, READ_AT_ONCE, ServerMemory, ServerProcess
from tests.requirements import requirement
from transports.inbound.unauthenticated_limits import Limited, Refusals
from transports.inbound_port import Refused

pytestmark = requirement("ops.memory")

MIB = 1 << 20


class Memory(ServerMemory):
    """A gateway of 50 MiB whose processes have 20 MiB each, on a machine with 1,000 MiB."""

    def __init__(self, limit_mb: int | None = None, *, workers: int = 1, has_machine: bool = True) -> None:
        self.refusals: Refusals = Counter()
        self.now = 100.0
        self.size = 20 * MIB
        self.available: int | None = None  # None: all that its processes have not
        self.asked: list[int] = []
        self.takes_s = 0.0
        super().__init__(
            limit_mb,
            self.refusals,
            workers=workers,
            read=self.sizes,
            machine=lambda: self.machine() if has_machine else None,
            own=lambda: 50 * MIB,
            clock=lambda: self.now,
        )

    def machine(self) -> MachineMemory:
        free = 950 * MIB - sum(process.read_bytes or 0 for process in self)
        return MachineMemory(1_000 * MIB, free if self.available is None else self.available)

    def sizes(self, tops: Collection[int]) -> Mapping[int, int]:
        self.asked += tops
        self.now += self.takes_s
        return dict.fromkeys(tops, self.size)

    def run(self, number: int = 1, session: str = "s1", server: str = "files") -> list[ServerProcess]:
        """Start as many processes."""
        found = [self.begin(server, session) for _ in range(number)]
        for process in found:
            process.started(id(process), id(process))
        return found

    async def grow(self) -> None:
        """Until each process has grown and was read."""
        self.now += GROWN_S
        while not all(process.is_grown for process in self):
            self.now += 100
            await self.sample()


async def test_each_session_and_server_is_counted_and_what_has_ended_is_not() -> None:
    memory = Memory()
    files, other = memory.run()[0], memory.run(2, "s2", "notes")
    await memory.grow()
    assert memory.of_session("s1") == 20 * MIB and memory.of_session("s2") == 40 * MIB
    assert memory.of_session("s2", other[0].pid) == 20 * MIB and memory.of_session("gone") == 0
    assert memory.by_server() == {"files": 20 * MIB, "notes": 40 * MIB}
    assert memory.state().used == 110 * MIB
    for process in (files, *other, files):
        process.ended()
    assert not [*memory] and memory.state().used == 50 * MIB


async def test_no_process_is_asked_when_one_comes_or_goes() -> None:
    memory, asked = Memory(limit_mb=10_000), 0
    running = [memory.run(session=f"s{number}", server=f"{number % 3}")[0] for number in range(40)]
    await memory.grow()
    young = memory.run(2, session="s0", server="0")
    before = memory.state()
    bytes_of = memory.bytes_of

    def asking(process: ServerProcess) -> int:
        nonlocal asked
        asked += 1
        return bytes_of(process)

    memory.bytes_of = asking  # type: ignore[method-assign]
    (another,) = memory.run(session="s1", server="1")
    assert memory.state().used == before.used + 20 * MIB
    for process in (another, another, young[0], running[7]):
        process.ended()
    assert memory.state().used == before.used - 40 * MIB
    assert asked == 4, "only of those that came or went"


async def test_a_process_that_grew_beyond_the_limit_shuts_its_server_off_only_while_it_runs() -> None:
    memory = Memory(250)
    [large] = memory.run()
    memory.size = 600 * MIB
    await memory.grow()
    with pytest.raises(Refused):
        memory.begin("files", "s2")
    large.ended()
    assert memory.run(1, "s2") and memory.expected("files") == ASSUMED_BYTES


async def test_processes_that_seem_larger_than_all_that_is_in_use_take_nothing_from_others() -> None:
    memory = Memory()
    [inflated] = memory.run()
    memory.size, memory.available = 10_000 * MIB, 900 * MIB
    await memory.grow()
    assert memory.bytes_of(inflated) == 10_000 * MIB and memory.state().used == 100 * MIB
    assert memory.run(1, "s2", "notes"), "another server starts"


async def test_what_has_not_grown_counts_as_much_as_the_servers_others() -> None:
    memory = Memory(0)
    assert memory.bytes_of(memory.run()[0]) == ASSUMED_BYTES, "none was read yet"
    memory.size = 1 * MIB
    await memory.sample()
    assert memory.by_server() == {"files": ASSUMED_BYTES}, "it is being loaded"
    memory.size = 20 * MIB
    await memory.grow()
    assert memory.by_server() == {"files": 20 * MIB}
    assert memory.bytes_of(memory.run()[0]) == 20 * MIB == memory.expected("files")
    assert memory.expected("notes") == ASSUMED_BYTES


async def test_a_process_grows_from_its_start_and_not_while_its_package_is_fetched() -> None:
    memory = Memory(0)
    [first] = memory.run()
    await memory.grow()
    late = memory.begin("files", "s2")
    first.ended()
    memory.now += 100
    late.started(7, 7)
    memory.size, memory.now = 1 * MIB, memory.now + 0.2
    await memory.sample()
    assert late.read_bytes == 1 * MIB and memory.bytes_of(late) == 20 * MIB
    await memory.grow()
    assert memory.bytes_of(late) == 1 * MIB


async def test_a_sample_reads_few_processes_and_each_in_its_turn() -> None:
    memory = Memory(0)
    processes = memory.run(3 * READ_AT_ONCE - 1)
    for count in (1, 2, 3):
        memory.now += 1
        await memory.sample()
        assert len(memory.asked) == count * READ_AT_ONCE
    assert {*memory.asked} == {process.top for process in processes}


async def test_what_has_grown_is_read_before_what_starts_faster_than_it_is_read() -> None:
    memory = Memory(0)
    memory.run()
    await memory.sample()
    memory.now += GROWN_S
    memory.run(2 * READ_AT_ONCE)
    await memory.sample()
    assert memory.expected("files") == 20 * MIB


async def test_a_new_server_is_read_before_many_others_are_read_again() -> None:
    memory = Memory(0)
    memory.run(3 * READ_AT_ONCE)
    await memory.grow()
    memory.run(1, "s2", "notes")
    memory.now += GROWN_S
    await memory.sample()
    assert memory.expected("notes") == 20 * MIB


async def test_what_grows_later_is_read_again_however_fast_others_start_and_end() -> None:
    memory = Memory(0)
    [large] = memory.run()
    others: list[ServerProcess] = []
    for second in range(40):
        memory.size = (20 if second < 20 else 600) * MIB
        memory.now += 1
        others += memory.run(2 * READ_AT_ONCE)
        while len(others) > 8 * 2 * READ_AT_ONCE:
            others.pop(0).ended()
        await memory.sample()
    assert memory.bytes_of(large) == 600 * MIB


async def test_reading_takes_a_twentieth_of_the_time_at_most() -> None:
    memory = Memory(0)
    memory.run()
    memory.takes_s = 2.0
    for after, count in ((0.0, 1), (37.0, 1), (1.0, 2)):
        memory.now += after
        await memory.sample()
        assert len(memory.asked) == count


@pytest.mark.parametrize(
    ("limit_mb", "workers", "available", "most"),
    [
        (None, 1, 1_000, 800),  # 80 % of the machine
        (None, 2, 1_000, 400),
        (None, 1, 100, 100),  # what is available, less a twentieth, beside the 50 that the gateway has
        (None, 1, 0, 0),
        (300, 1, 0, 300),
        (300, 2, 0, 150),
        (0, 1, 0, 0),
    ],
)
async def test_the_limit_is_the_settings_or_what_the_machine_has(
    limit_mb: int | None, workers: int, available: int, most: int
) -> None:
    memory = Memory(limit_mb, workers=workers)
    memory.available = available * MIB
    assert memory.state().most // MIB == most


async def test_a_machine_that_tells_nothing_sets_no_limit() -> None:
    memory = Memory(has_machine=False)
    memory.run(100)
    assert memory.state().most == 0 and not memory.is_short
    assert len(Memory(50 + 640, has_machine=False).run(10)) == 10, "what cannot be read counts as assumed"


async def test_shortage_is_told_once_before_a_process_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    memory = Memory(250)
    await memory.sample()
    memory.run()
    await memory.grow()
    memory.run(8)
    assert not memory.is_short and not caplog.messages and memory.state().left == 20 * MIB
    memory.run()
    assert memory.is_short and not memory.refusals
    for _ in range(3):
        with pytest.raises(Refused) as refused:
            memory.begin("files", "s2")
    assert (refused.value.status, refused.value.data) == (503, {"reason": "out_of_memory", "retryAfter": 30})
    assert str(refused.value) == (
        "Server 'files' was not started, and nothing was executed: it needs more memory than is left. End a session, "
        "or try again in 30 s."
    )
    assert memory.refusals == {Limited.MEMORY: 3} and memory.of_session("s2") == 0
    short, full = caplog.messages
    assert short.startswith("memory is short: the gateway and its 9 server processes have 230 of 250 MiB")
    assert full.startswith("no process of server files is started: the gateway and its 10 server processes have 250 of")
    assert all("limits.total_memory_mb" in line for line in caplog.messages)
    for process in memory:
        process.ended()
    await memory.sample()
    assert not memory.is_short


@pytest.mark.parametrize("size", [80, 400, 660])
async def test_however_large_a_server_is_a_shortage_ends_once_there_is_room_again(size: int) -> None:
    memory = Memory(700)
    memory.size = size * MIB
    first, *others = memory.run(1) + (memory.run(5) if size < 100 else [])
    await memory.grow()
    for _ in range(6):
        with contextlib.suppress(Refused):
            others += memory.run()
    assert memory.is_short and memory.refusals
    for process in others:
        process.ended()
    await memory.sample()
    assert memory.is_short is (size > 100), "less than another needs is left"
    first.ended()
    await memory.sample()
    assert not memory.is_short
    memory.size = 1 * MIB
    memory.run(8, server="small")
    await memory.sample()
    assert not memory.is_short, "no large server runs any more"


async def test_a_third_of_what_servers_may_have_is_enough_for_more() -> None:
    memory = Memory(700)
    memory.size = 200 * MIB
    memory.run(2)
    await memory.grow()
    assert not memory.is_short
    memory.run()
    await memory.grow()
    assert memory.is_short


async def test_what_is_still_growing_is_not_available_to_others() -> None:
    memory = Memory()
    memory.available = 150 * MIB
    memory.run()
    with pytest.raises(Refused):
        memory.begin("files", "s2")


@pytest.mark.parametrize(
    ("memory", "most"),
    [
        (Memory(), 100 * MIB),
        (Memory(workers=2), 50 * MIB),
        (Memory(400), 50 * MIB),
        (Memory(1 << 20), 512 * MIB),
        (Memory(0), 100 * MIB),
        (Memory(has_machine=False), 512 * MIB),
    ],
)
def test_bodies_may_have_an_eighth_of_what_the_gateway_may_use(memory: Memory, most: int) -> None:
    assert memory.bodies == most
