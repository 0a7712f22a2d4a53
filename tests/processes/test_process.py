"""Children are started, heard and ended as promised, and nothing is ever left behind. Real processes throughout."""

import asyncio
import contextlib
import fcntl
import itertools
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.processes.children import (
    DAEMON,
    ECHO,
    SETSID,
    STUBBORN,
    Family,
    House,
    Recorder,
    ignored_signals,
    open_fds,
    parent_of,
    until,
)
from tests.requirements import requirement
from transports.upstream.child_process import Inbox, Process, ProcessFailed
from transports.upstream.fork_server_client import ForkServer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


on_both_loops = pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"use_uvloop": each}) for each in (False, True)], ids=["asyncio", "uvloop"]
)
"""For what the event loop has a part in: what reapers and the program of the fork server do is the same on each."""


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


# --- talking


@on_both_loops
async def test_lines_come_in_order_before_the_exit(house: House) -> None:
    process = await house.start("cat")
    sent = [b"line %d" % n for n in range(5_000)]
    assert process.stdin.write(b"".join(line + b"\n" for line in sent))
    assert await process.shutdown(grace_s=5) == 0
    assert house.sink.lines == sent
    assert (house.sink.codes, house.sink.lines_at_exit) == ([0], 5_000)


@on_both_loops
async def test_the_sink_gets_nothing_before_spawn_returns(house: House) -> None:
    heard_early: list[str] = []

    class Impatient(Recorder):
        process: Process | None = None

        def line(self, line: bytes) -> None:
            super().line(line)
            if self.process is None:
                heard_early.append("line")

        def exited(self, code: int | None) -> None:
            super().exited(code)
            if self.process is None:
                heard_early.append("exit")

    sinks = [Impatient() for _ in range(30)]
    for sink in sinks:
        sink.process = await house.start("echo", "hello", sink=sink)
        await sink.process.wait()
    assert heard_early == []
    assert all((sink.lines, sink.codes) == ([b"hello"], [0]) for sink in sinks)


async def test_line_ends_and_a_last_line_without_one(house: House) -> None:
    process = await house.start("printf", r"a\r\n\n\r\nb\n\377\000garbage\nlast")
    assert await process.wait() == 0
    assert house.sink.lines == [b"a", b"b", b"\xff\x00garbage", b"last"]


@on_both_loops
@requirement("proc.noise")
async def test_a_giant_line_is_discarded_and_the_next_one_is_heard(house: House) -> None:
    program = "import sys\nsys.stdout.write('H' * 600 + 'x' * 300_000 + 'T' * 600 + '\\nnext\\n' + 'y' * 200_000)"
    process = await house.python(program, max_line_bytes=100_000)
    assert await process.wait() == 0
    assert house.sink.oversize == [(b"H" * 512, b"T" * 512), (b"y" * 512, b"y" * 512)]
    assert house.sink.lines == [b"next"]


@on_both_loops
@requirement("proc.noise")
async def test_endless_stderr_does_not_block_the_child_and_only_its_end_is_kept(house: House) -> None:
    program = (
        "import sys\nfor n in range(300_000): sys.stderr.write(f'noise {n}\\n')\n"
        "sys.stderr.write('z' * 1_000_000 + '\\n')\n"
        "sys.stderr.write('the last words')\nsys.stderr.flush()\nprint('done')"
    )
    process = await house.python(program)
    assert await process.wait() == 0
    assert house.sink.lines == [b"done"]
    tail = process.stderr_tail()
    assert len(tail) == 150
    assert tail[-3:] == ["noise 299999", "z" * 2_000, "the last words"]


@requirement("proc.noise")
@pytest.mark.parametrize("is_drained", [False, True])
async def test_many_short_lines_are_heard_a_few_in_each_turn_and_all_before_the_end(is_drained: bool) -> None:
    """A chunk may have tens of thousands, which would hold up all other sessions. A server that exits may leave half a
    million in its pipe."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
    sent = b"".join(b"%d\n" % number for number in range(20_000))
    parts, turns, ends, turn = list[bytes](), list[int](), list[str](), 0

    def heard(part: bytes) -> None:
        parts.append(part)
        turns.append(turn)

    inbox = Inbox(asyncio.get_running_loop(), reader, heard, lambda: ends.append("end"))
    assert os.write(writer, sent) == len(sent)
    os.close(writer)
    inbox.start()
    while len(ends) <= is_drained:
        await asyncio.sleep(0)
        turn += 1
        if is_drained and turn == 5:
            inbox.drain(lambda: ends.append("drained"))
    assert ends == ["end", "drained"][: len(ends)]
    assert b"".join(parts) == sent
    assert max(map(turns.count, turns)) <= 2, "one of either chunk, where one chunk ends and the next begins"
    assert max(part.count(b"\n") for part in parts) <= 128


@on_both_loops
@requirement("proc.noise")
async def test_a_child_that_never_reads_shows_in_the_write_buffer_and_can_be_ended(house: House) -> None:
    process = await house.start("sleep", "600")
    for _ in range(64):
        assert process.stdin.write(b"x" * 65_535 + b"\n")
    assert len(process.stdin.pending) > 3 << 20 and monotonic() - process.stdin.taken_at < 60
    ended = await process.shutdown(grace_s=0.05)
    assert ended in (-signal.SIGTERM, -signal.SIGKILL), "by how busy the machine is"
    assert not process.stdin.pending
    assert not process.stdin.write(b"late\n")


@on_both_loops
@requirement("proc.noise")
async def test_a_child_that_closes_its_stdin_refuses_lines_but_is_still_heard(house: House) -> None:
    process = await house.start("sh", "-c", "exec <&-; echo closed; exec sleep 600")
    assert await until(lambda: house.sink.lines)
    assert not process.stdin.write(b"anybody there?\n")
    assert process.returncode is None
    process.kill()
    assert await process.wait() == -signal.SIGKILL


@on_both_loops
@requirement("proc.noise")
async def test_a_child_that_closes_its_stdout_and_stays_is_ended_a_little_later(house: House) -> None:
    await house.start("sh", "-c", "printf unfinished; exec >&-; exec sleep 600")
    assert await until(lambda: house.sink.lines)
    assert (house.sink.lines, house.sink.codes) == ([b"unfinished"], [])
    assert await until(lambda: house.sink.codes)
    assert house.sink.codes == [-signal.SIGKILL]
    assert house.family.members() == []


async def test_a_sink_that_raises_loses_only_that_line(house: House, caplog: pytest.LogCaptureFixture) -> None:
    class Fragile(Recorder):
        def line(self, line: bytes) -> None:
            super().line(line)
            if line == b"b":
                raise ValueError(line)

    sink = Fragile()
    process = await house.start("printf", r"a\nb\nc\n", sink=sink)
    assert await process.wait() == 0
    assert sink.lines == [b"a", b"b", b"c"]
    assert "a line was lost" in caplog.text


# --- starting


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("no-such-command", "there is no program 'no-such-command' on its PATH"),
        ("/no/such/command", "No such file or directory: '/no/such/command'"),
        ("./no-such", "No such file or directory: './no-such'"),
    ],
)
async def test_missing_commands_are_named(house: House, command: str, why: str) -> None:
    with pytest.raises(ProcessFailed, match=f"^{why}$"):
        await house.start(command)
    assert house.sink.codes == []


async def test_what_else_prevents_a_start_is_said(house: House, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    with pytest.raises(ProcessFailed, match=f"^Permission denied: '{script}'$"):
        await house.start(str(script))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(ProcessFailed, match=r"^The interpreter that the first line of '.*' names does not exist$"):
        await house.start(str(script))
    with pytest.raises(ProcessFailed, match=r"^No such file or directory: working directory '/no/such/place'$"):
        await house.start("cat", cwd="/no/such/place")
    with pytest.raises(ProcessFailed, match="embedded null byte"):
        await house.start("cat", "a\0b")
    assert house.family.members() == []


async def test_a_child_gets_its_directory_its_environment_and_nothing_else(house: House, tmp_path: Path) -> None:
    program = (
        "import os\n"
        "def is_open(fd):\n"
        "    try: return bool(os.fstat(fd))\n"
        "    except OSError: return False\n"
        "print(os.getcwd())\nprint(sorted(os.environ))\n"
        "print([fd for fd in range(1024) if is_open(fd)])\n"
        "status = dict(line.split(':\\t', 1) for line in open('/proc/self/status') if ':\\t' in line)\n"
        "print(int(status['SigBlk'], 16), os.getsid(0) == os.getpid())\n"
    )
    process = await house.start(sys.executable, "-ISc", program, cwd=str(tmp_path))
    assert await process.wait() == 0
    names = {"FAMILY", "PATH"}
    assert house.sink.lines[0].decode() == str(tmp_path)
    assert names <= set(eval(house.sink.lines[1])) <= names | {"LC_CTYPE"}  # Python adds that one in a C locale
    assert house.sink.lines[2:] == [b"[0, 1, 2]", b"0 True"]


@on_both_loops
@requirement("proc.gone")
async def test_a_cancelled_spawn_leaves_neither_process_nor_descriptor(house: House) -> None:
    await (await house.start("true", sink=Recorder())).wait()
    before = open_fds()
    for turns in range(40):  # cancelled at every stage of a start, from before its first step on
        task = asyncio.ensure_future(house.start("sleep", "600", sink=Recorder()))
        for _ in range(turns % 8):
            await asyncio.sleep(0.0003 * (turns % 5))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            (await task).kill()
    assert await house.family.gone()
    assert await until(lambda: open_fds() <= before)


@on_both_loops
async def test_a_specification_larger_than_a_socket_buffer_arrives(house: House) -> None:
    argv = ["x" * 100_000 for _ in range(10)]
    process = await house.start("sh", "-c", "echo $#", "sh", *argv)
    assert await process.wait() == 0
    assert house.sink.lines == [b"10"]


# --- ending


@on_both_loops
@requirement("proc.shutdown")
async def test_closing_stdin_is_enough_for_a_polite_child(house: House) -> None:
    process = await house.python(ECHO)
    process.stdin.write(b"still in the pipe\n")
    assert await process.shutdown(grace_s=10) == 0
    assert (house.sink.lines, house.sink.codes) == ([b"still in the pipe"], [0])


@requirement("proc.shutdown")
async def test_sigterm_comes_second_and_reaches_descendants(house: House) -> None:
    program = "trap 'echo inner; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
    script = f'trap "wait; echo outer; exit 3" TERM; sh -c "{program}" & wait'
    process = await house.start("sh", "-c", script)
    assert await until(lambda: house.sink.lines)
    assert await process.shutdown(grace_s=1) == 3
    assert house.sink.lines == [b"ready", b"inner", b"outer"]


@requirement("proc.shutdown")
async def test_a_child_that_ignores_sigterm_is_killed(house: House) -> None:
    process = await house.ready(STUBBORN)
    assert await process.shutdown(grace_s=0.05) == -signal.SIGKILL
    assert (house.sink.codes, house.family.members()) == ([-signal.SIGKILL], [])


@on_both_loops
@requirement("proc.shutdown")
async def test_shutdown_may_be_called_again_and_concurrently(house: House) -> None:
    process = await house.python(STUBBORN)
    assert await until(lambda: house.sink.lines)  # it ignores SIGTERM from then on
    codes = await asyncio.gather(*(process.shutdown(grace_s=0.05) for _ in range(5)))
    assert [*codes, await process.shutdown(grace_s=9), await process.wait()] == [-signal.SIGKILL] * 7
    process.kill()
    assert house.sink.codes == [-signal.SIGKILL]


@on_both_loops
@requirement("proc.shutdown")
async def test_a_cancelled_shutdown_kills(house: House) -> None:
    process = await house.python(STUBBORN)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await process.shutdown(grace_s=60)
    assert await process.wait() == -signal.SIGKILL


@requirement("proc.gone")
@pytest.mark.parametrize("program", [SETSID, DAEMON], ids=["setsid", "daemon"])
@pytest.mark.parametrize("ended_by", ["exit", "kill"])
async def test_grandchildren_that_got_away_are_gone_before_the_exit_is_told(
    house: House, program: str, ended_by: str
) -> None:
    left_at_exit: list[int] = []

    class Looking(Recorder):
        def exited(self, code: int | None) -> None:
            super().exited(code)
            left_at_exit.extend(house.family.members())

    sink = Looking()
    process = await house.python(program, sink=sink)
    assert await until(lambda: sink.lines)
    # Between the moment at which `exec` closes files and the one at which it sets the environment, there is none.
    assert await until(lambda: len(house.family.members()) == 2)
    if ended_by == "exit":
        assert await process.shutdown(grace_s=10) == 0
    else:
        process.kill()
        assert await process.wait() == -signal.SIGKILL
    assert left_at_exit == []


@requirement("proc.gone")
async def test_a_child_that_keeps_forking_is_gone_too(house: House) -> None:
    program = (
        "import os, time\nprint('ready', flush=True)\nend = time.monotonic() + 20\n"
        "while time.monotonic() < end:\n"
        "    if os.fork():\n        os._exit(0)\n"  # the server is gone at once, and its heirs hop from pid to pid
    )
    process = await house.python(program)
    async with asyncio.timeout(60):
        assert await process.wait() in (0, -signal.SIGKILL)
    assert house.family.members() == []


@on_both_loops
@requirement("proc.gone")
async def test_leaving_the_fork_server_ends_every_child_and_its_own_program(family: Family) -> None:
    before = open_fds()
    sinks = [Recorder() for _ in range(6)]
    async with ForkServer() as fork_server:
        processes = [await fork_server.spawn(family.python([SETSID, STUBBORN][n % 2]), s) for n, s in enumerate(sinks)]
        program = parent_of(parent_of(processes[0].pid))
    assert family.members() == []
    assert not alive(program)
    # A polite child may be quicker than its SIGKILL, for its stdin is closed as well.
    assert [sink.codes for sink in sinks[1::2]] == [[-signal.SIGKILL]] * 3
    assert all(sink.codes in ([0], [-signal.SIGKILL]) for sink in sinks[::2])
    assert open_fds() <= before + 1  # the loop may keep a descriptor of its own for its threads


def fds_in(pid: int) -> int:
    """How many it has open; 0 for all but root, to whom it is closed."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:
        assert os.geteuid() != 0
        return 0


@on_both_loops
@requirement("proc.gone")
async def test_two_hundred_lives_leave_no_descriptor_and_no_process(house: House) -> None:
    first = await house.start("cat", sink=Recorder())
    reaper = parent_of(first.pid)
    program = parent_of(reaper)
    await first.shutdown(grace_s=10)
    program_fds = fds_in(program)
    before = open_fds()
    for _ in range(10):
        sinks = [Recorder() for _ in range(20)]
        processes = await asyncio.gather(*(house.start("cat", sink=sink) for sink in sinks))
        for number, process in enumerate(processes):
            assert process.stdin.write(b"%d\n" % number)
        assert set(await asyncio.gather(*(process.shutdown(grace_s=10) for process in processes))) == {0}
        assert [sink.lines for sink in sinks] == [[b"%d" % number] for number in range(20)]
        with pytest.raises(ProcessFailed):
            await house.start("no-such-command", sink=Recorder())
    assert open_fds() <= before
    # The program answers a start before it has closed what the start was given, and may read /proc at any moment.
    assert await until(lambda: fds_in(program) <= program_fds)
    assert house.family.members() == []
    children = Path(f"/proc/{program}/task/{program}/children")
    assert await until(lambda: not children.read_text().split())


# --- being killed


@requirement("proc.gone")
@pytest.mark.alone  # it bounds a time
async def test_when_the_gateway_is_killed_everything_is_gone_within_two_seconds(family: Family) -> None:
    with subprocess.Popen(  # noqa: ASYNC220  # not of this loop: it is a gateway of its own
        [sys.executable, "-m", "tests.processes.stand_in", family.tag, "20"], cwd=ROOT, stdout=subprocess.PIPE
    ) as gateway:
        assert gateway.stdout is not None
        assert gateway.stdout.readline() == b"ready\n"
        members = family.members()
        assert len(members) > 20
        reaper = parent_of(next(m for m in members if parent_of(parent_of(parent_of(m))) == gateway.pid))
        program = parent_of(reaper)
        gateway.kill()
        assert await family.gone(within_s=2.0)
        assert await until(lambda: not alive(program), 2.0)


@requirement("proc.gone")
@pytest.mark.parametrize("program", [SETSID, DAEMON, STUBBORN], ids=["setsid", "daemon", "stubborn"])
async def test_when_a_reaper_is_killed_its_server_and_all_below_are_gone(house: House, program: str) -> None:
    process = await house.ready(program)
    os.kill(parent_of(process.pid), signal.SIGKILL)
    async with asyncio.timeout(60):
        assert await process.wait() is None
    assert house.sink.codes == [None]
    assert await house.family.gone()
    assert await (await house.start("true", sink=Recorder())).wait() == 0


@on_both_loops
@requirement("proc.gone")
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "cut off"])
async def test_when_the_fork_server_program_is_lost_children_work_on_and_new_ones_start(
    house: House, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    old = await house.python(DAEMON)
    echo_sink = Recorder()
    echo = await house.python(ECHO, sink=echo_sink)
    assert await until(lambda: house.sink.lines)
    program, send_fds, sent = parent_of(parent_of(old.pid)), socket.send_fds, itertools.count()

    def cut_off(*given: Any) -> int:
        if next(sent) == 5:
            asyncio.get_running_loop().call_soon(os.kill, program, signal.SIGCONT)
            raise BrokenPipeError
        return send_fds(*given)

    if is_killed:
        os.kill(program, signal.SIGKILL)
    else:
        os.kill(program, signal.SIGSTOP)  # requests wait for it, until it is cut off
        monkeypatch.setattr(socket, "send_fds", cut_off)
    echo.stdin.write(b"still here\n")
    assert await until(lambda: echo_sink.lines == [b"still here"])
    # Not given time to notice: requests on their way to a dead program are made again to a new one. One that is cut off
    # starts what it was asked for before.
    processes = await asyncio.gather(*(house.start("cat", sink=Recorder()) for _ in range(10)))
    codes = await asyncio.gather(*(process.shutdown(grace_s=10) for process in [*processes, old, echo]))
    assert set(codes) == {0}
    assert house.family.members() == []
    is_there = Path(f"/proc/{program}").exists  # as a zombie, too
    async with asyncio.timeout(60):
        while is_there():
            await (await house.start("true", sink=Recorder())).wait()


@requirement("proc.gone")
async def test_signals_meant_for_the_gateway_do_not_end_reapers(house: House) -> None:
    process = await house.python(ECHO)
    reaper = parent_of(process.pid)
    for pid in (reaper, parent_of(reaper)):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
    process.stdin.write(b"unimpressed\n")
    assert await until(lambda: house.sink.lines == [b"unimpressed"])
    assert await process.shutdown(grace_s=10) == 0
    assert await (await house.start("true", sink=Recorder())).wait() == 0


async def test_a_server_starts_with_all_signals_as_the_system_has_them(family: Family, sink: Recorder) -> None:
    ours = signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # as `nohup` leaves SIGHUP to the gateway
    try:
        async with ForkServer() as fork_server:
            await (await fork_server.spawn(family.command("grep", "^Sig[BI]", "/proc/self/status"), sink)).wait()
    finally:
        signal.signal(signal.SIGUSR2, ours)
    found = {name: int(mask, 16) for name, mask in map(bytes.split, sink.lines)}
    # glibc ignores two signals of its own, 32 and 33, in whatever posix_spawn(3) starts, and lets no program set them:
    # who starts these tests in that way, as make does, has left them to this process.
    assert found == {b"SigBlk:": 0, b"SigIgn:": ignored_signals() & 0b11 << 31}
