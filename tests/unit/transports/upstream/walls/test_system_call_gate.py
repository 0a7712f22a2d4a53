"""Real programs behind a gate: what they connect to and listen on, whatever they try."""

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tests.support.connecting_program
from tests.requirements import requirement
from tests.support.gated import Gateway, gated, python_for
from transports.upstream.walls.pending_connections import MAX_WAITING
from transports.upstream.walls.wall_specification import Reach

pytestmark = requirement("box.network")

PROGRAM = Path(tests.support.connecting_program.__file__).read_text(encoding="utf-8")
V4, V6, UNIX = int(socket.AF_INET), int(socket.AF_INET6), int(socket.AF_UNIX)


def v4(host: str, port: int) -> str:
    return (struct.pack("=H", V4) + struct.pack("!H", port) + socket.inet_pton(V4, host) + bytes(8)).hex()


def v6(host: str, port: int, scope: int = 0) -> str:
    head = struct.pack("=H", V6) + struct.pack("!HI", port, 0)
    return (head + socket.inet_pton(V6, host) + struct.pack("=I", scope)).hex()


ABSTRACT = f"gate-test-{os.getpid()}"
"""A name that is the machine's: another run beside this one has another."""


def unix(path: bytes | str) -> str:
    return (struct.pack("=H", UNIX) + os.fsencode(path)).hex()


def to(address: str, domain: int | None = None, **options: Any) -> list[Any]:
    """An attempt to connect to an address, with a socket of its family if no other is given."""
    (family,) = struct.unpack("=H", bytes.fromhex(address[:4]))
    return ["connect", domain or family, address, options]


@contextlib.contextmanager
def serving(family: int, address: Any) -> Iterator[Any]:
    """A listener that answers each connection with "ok". Its name."""
    listener = socket.socket(family)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client, contextlib.suppress(OSError):
                    if client.recv(4_096):
                        client.sendall(b"ok")

    thread = threading.Thread(target=accept, daemon=True)
    with listener:
        listener.bind(address)
        listener.listen(64)
        thread.start()
        yield listener.getsockname()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


@contextlib.contextmanager
def never_accepting() -> Iterator[str]:
    """An address with which no connection is ever made: the queue of its listener is full."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield v4("127.0.0.1", listener.getsockname()[1])


def attempt(reach: Reach, *attempts: list[Any], uid: int = 0, **how: Any) -> tuple[list[Any], Gateway]:
    """What a program's attempts came to, and the gateway, which was told of refusals."""
    with gated(python_for(uid), "-c", PROGRAM, json.dumps(attempts), reach=reach, uid=uid, **how) as program:
        return json.loads(program.output()), program.gateway


@pytest.mark.parametrize("uid", [0, 65534])
def test_granted_addresses_are_reached_and_others_are_refused_in_every_form(uid: int) -> None:
    with serving(V4, ("127.0.0.1", 0)) as (_, port), serving(V6, ("::1", 0)) as six:
        reach = Reach(public=True, names=True, hosts=(f"127.0.0.1:{port}", f"[::1]:{six[1]}"))
        own, in_six = v4("127.0.0.1", port), v6("::ffff:127.0.0.1", port)
        granted = [to(each, bytes=True, nonblocking=True) for each in (own, in_six)]
        granted += [to(each, bytes=True) for each in (own, own + "00" * 112, v4("0.0.0.0", port), v6("::1", six[1]))]
        hosts = ["169.254.169.254", "10.0.0.5", "127.0.0.1", "0.0.0.0", "224.0.0.1", "192.0.2.2"]
        refused = [to(v4(host, 80), nonblocking=True) for host in hosts]
        hosts = ["::1", "fe80::1", "fd00::1", "::ffff:10.0.0.5", "64:ff9b::a00:5", "2002:a00:5::", "::"]
        refused += [to(v6(host, 80, 1)) for host in hosts]
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))  # without listen(): whoever connects is refused by the kernel
            reach_closed = closed.getsockname()[1]
            refused.append(to(v4("127.0.0.1", reach_closed)))
            results, gateway = attempt(reach, *granted, *refused, uid=uid)
    assert results == ["ok"] * len(granted) + ["EACCES"] * len(refused)
    told = gateway.shown()
    assert ("connect", "169.254.169.254:80", "a metadata address") in told
    assert ("connect", "10.0.0.5:80", "a private address") in told
    assert ("connect", "[fe80::1]:80", "a link-local address") in told
    assert ("connect", f"127.0.0.1:{reach_closed}", "a loopback address") in told


def test_calls_that_make_no_sense_fail_as_they_do_without_a_gate() -> None:
    address = v4("10.0.0.5", 80)
    with serving(V4, ("127.0.0.1", 0)) as (_, port):
        results, gateway = attempt(
            Reach(hosts=("0.0.0.0/0", f"127.0.0.1:{port}")),
            *[to(address, size=size) for size in (0, 1, 2, 15, 129, 2**31 - 1, -1)],
            *[to(v6("fd00::1", 80), size=size) for size in (2, 16, 23)],
            to(v6("::1", 80), V4),
            to(address, V6),
            to(unix(b"/tmp/x\0"), V4),
            to(address, type=int(socket.SOCK_DGRAM)),
            ["odd_descriptors"],
            ["disconnect", port],
            to(struct.pack("=HHII", socket.AF_NETLINK, 0, 1, 0).hex(), type=3),
        )
    assert results[:14] == [*["EINVAL"] * 10, *["EAFNOSUPPORT"] * 3, "ENETUNREACH"]
    assert results[14:] == [["EBADF", "EBADF", "ENOTSOCK", "EFAULT", "EFAULT"], ["", "EACCES", ""], "EACCES"]
    assert gateway.shown() == [("connect", "127.0.0.2:80", "a loopback address")]


def test_addresses_and_descriptors_that_change_meanwhile_lead_nowhere_else() -> None:
    with serving(V4, ("127.0.0.1", 0)) as (_, port), serving(V4, ("127.0.0.2", port)):
        (result,), _ = attempt(
            Reach(hosts=(f"127.0.0.1:{port}",)), ["race", v4("127.0.0.2", port), v4("127.0.0.1", port), 2]
        )
    assert result == ["127.0.0.1"]


def test_a_program_that_may_not_be_looked_into_reaches_nothing() -> None:
    """Without the capability that root has."""
    with serving(V4, ("127.0.0.1", 0)) as (_, port):
        address = v4("127.0.0.1", port)
        results, _ = attempt(Reach(hosts=("localhost",)), to(address), ["undumpable", address])
    assert results[0] == "" and results[1] in ("", "EPERM")


def test_connections_that_never_end_hold_up_no_others() -> None:
    with never_accepting() as stuck, serving(V4, ("127.0.0.1", 0)) as (_, port):
        others = [to(v4("127.0.0.1", port), bytes=True, nonblocking=each) for each in (True, False)]
        results, _ = attempt(Reach(hosts=("localhost",)), ["hang", stuck, others], ["timeout", stuck])
    assert results == [["ok", "ok"], ["EINPROGRESS", True]]


def test_blocking_connections_are_bounded_in_number_and_forgotten_when_their_process_dies() -> None:
    with never_accepting() as stuck, serving(V4, ("127.0.0.1", 0)) as (_, port):
        others = to(v4("127.0.0.1", port), bytes=True, nonblocking=True)
        twice = [["many", stuck, MAX_WAITING + 5], others] * 2
        results, _ = attempt(Reach(hosts=("localhost",)), *twice)
        assert results == [5, "ok"] * 2


def test_listening_needs_a_grant_and_port_0_grants_what_only_the_server_itself_reaches() -> None:
    attempts = [["listen", V4, host, 0] for host in ("", "0.0.0.0", "127.0.0.1")] + [["listen", V6, "::1", 0]]
    results, gateway = attempt(Reach(public=True), *attempts)
    assert results == ["EACCES"] * 4 and {kind for kind, _, _ in gateway.shown()} == {"listen"}
    results, _ = attempt(Reach(public=True, listen=(0,)), *attempts, ["own_listener"])
    assert results == ["EACCES", "EACCES", "", "", ["EACCES", "", "own", "EACCES"]]


@requirement("box.sockets")
def test_unix_sockets_are_reached_below_granted_folders_only(tmp_path: Path) -> None:
    granted, private = tmp_path / "granted", tmp_path / "private"
    granted.mkdir()
    private.mkdir()
    (granted / "link").symlink_to(private / "socket")
    (granted / "folder").symlink_to(private)
    (tmp_path / "way in").symlink_to(granted)
    inside, outside, exact = str(granted / "socket"), str(private / "socket"), str(private / "exact")
    with serving(UNIX, inside), serving(UNIX, outside), serving(UNIX, exact), serving(UNIX, f"\0{ABSTRACT}"):
        ok = [
            *(inside, inside + "\0", inside + "\0/../x"),  # what follows a zero byte is not looked at
            *(f"{tmp_path}/way in/socket", f"{granted}/../granted/socket", exact),
            *(f"{folder}granted/socket\0" for folder in ("", "/proc/self/cwd/", "/proc/thread-self/cwd/")),
        ]
        refused = [
            *(outside + "\0", f"{granted}/link", f"{granted}/folder/socket", f"{granted}/../private/socket"),
            *(f"{granted}-x/socket", "private/socket\0", f"\0{ABSTRACT}", exact + "2"),
        ]
        impossible = {
            "EPROTOTYPE": [to(unix(inside), type=int(socket.SOCK_SEQPACKET))],
            "EINVAL": [to(unix("")), to(unix("x" * 120))],
            "ENOENT": [to(unix("/run/nscd/socket")), to(unix(str(granted / "missing")), nonblocking=True)],
        }
        attempts = [to(unix(each), bytes=True) for each in (*ok, *refused)] + [*chain(*impossible.values())]
        results, gateway = attempt(Reach(sockets=(str(granted), exact)), *attempts, cwd=str(tmp_path))
    errors = [error for error, each in impossible.items() for _ in each]
    assert results == ["ok"] * len(ok) + ["EACCES"] * len(refused) + errors
    told = gateway.shown()
    assert ("socket", outside, "not granted") in told and len(told) <= len(refused)
    assert ("socket", f"@{ABSTRACT}", "an abstract name") in told


@requirement("box.sockets")
def test_a_unix_socket_whose_queue_is_full_is_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(UNIX) as listener, contextlib.ExitStack() as waiting:
        listener.bind(path)
        listener.listen(0)
        first = waiting.enter_context(socket.socket(UNIX))
        first.connect(path)
        attempts = json.dumps([to(unix(path), nonblocking=True), to(unix(path), bytes=True)])
        with gated(python_for(0), "-c", PROGRAM, attempts, reach=Reach(sockets=(path,))) as program:
            waiting.enter_context(listener.accept()[0])
            first.close()
            client = waiting.enter_context(listener.accept()[0])
            while client.recv(1) == b"":
                client = waiting.enter_context(listener.accept()[0])
            client.sendall(b"ok")
            assert json.loads(program.output())[1] == "ok"


@requirement("box.names")
@pytest.mark.parametrize("uid", [0, 65534])
def test_programs_of_c_python_and_node_resolve_names_and_reach_what_was_answered(uid: int) -> None:
    with serving(V4, ("127.0.0.1", 0)) as (_, port), serving(V6, ("::1", port)):
        reach = Reach(names=True, hosts=(f"localhost:{port}",))
        names = {"foo.test": ["127.0.0.1"], "six.test": ["127.0.0.1", "::1"]}
        script = f"""
        const dns = require("dns").promises, net = require("net");
        const get = host => new Promise((done, fail) => {{
          const s = net.connect({port}, host, () => s.write("x"));
          s.on("data", d => done(String(d))); s.on("error", fail);
        }});
        (async () => console.log(JSON.stringify([
          await dns.resolve4("foo.test"), await dns.resolve6("six.test"),
          await dns.resolveTxt("foo.test").catch(e => e.code),
          (await dns.lookup("six.test", {{all: true}})).map(a => a.address).sort(),
          await get("foo.test"), await get("six.test"),
        ])))().then(() => process.exit(0));
        """
        with gated("node", "-e", script, reach=reach, names=names, uid=uid) as program:
            results = json.loads(program.output())
        assert results == [["127.0.0.1"], ["::1"], "ENODATA", ["127.0.0.1", "::1"], "ok", "ok"]
        python, _ = attempt(reach, ["resolve", "six.test"], names=names, uid=uid)
        assert python == [["127.0.0.1", "::1"]]
        curl = ("curl", "-s", "-m", "10", "--http0.9", f"http://foo.test:{port}/")
        with gated(*curl, reach=reach, names=names, uid=uid) as program:
            assert program.output() == "ok"


@requirement("box.names")
def test_an_address_is_reachable_once_the_resolver_has_answered_it() -> None:
    with socket.socket() as fresh:
        fresh.bind(("127.0.0.1", 0))
    address = v4("93.184.216.34", 9)
    reach = Reach(hosts=("foo.test",))
    before, gateway = attempt(reach, to(address, nonblocking=True))
    assert before == ["EACCES"] and gateway.shown() == [("connect", "93.184.216.34:9", "not listed")]
    attempts = [["resolve", "foo.test"], to(address, nonblocking=True, give_up=True)]
    after, gateway = attempt(reach, *attempts, names={"foo.test": ["93.184.216.34"]}, learn=True)
    assert after[1] != "EACCES" and gateway.shown() == []


@requirement("box.refusals-seen")
def test_paths_of_any_bytes_are_counted() -> None:
    paths = [b"/" + bytes((1 + n % 31, 0x80 + n % 128)) * 40 + str(n).encode() for n in range(150)]
    results, gateway = attempt(Reach(), *[to(unix(path)) for path in paths])
    assert results == ["EACCES"] * len(paths) and sum(each["count"] for each in gateway.refused) == len(paths)
    packets = msgspec.json.encode([each["what"] for each in gateway.refused])
    assert msgspec.json.decode(packets, type=list[str]), "they are text"
