"""Filters in real processes: they decide as their tables say, and what a server's filter refuses, asks and allows."""

import errno
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from itertools import product

import pytest

from tests.requirements import requirement
from tests.support.gateway_process import ROOT
from transports.upstream.walls.raw_system_calls import AUDIT_ARCH, LAST, NUMBERS, numbers
from transports.upstream.walls.seccomp import (
    ALLOW,
    ATTRIBUTES,
    NOTIFY,
    OTHERS,
    Decision,
    FilterKind,
    Match,
    assemble,
    decisions,
    filter_for,
    refuse,
)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine not in NUMBERS, reason="seccomp filters are made for two machines"
)

IN_PROCESS = """
import ctypes, json, os, sys
sys.path.append(sys.argv[1])
from transports.upstream.walls import resource_limits, seccomp
resource_limits.forbid_new_privileges()
seccomp.install(bytes.fromhex(sys.argv[2]), listener=False)
libc = ctypes.CDLL(None, use_errno=True)
for number, *arguments in json.loads(sys.argv[3]):
    ctypes.set_errno(0)
    libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    print(ctypes.get_errno())
"""


def errors(program: bytes, *calls: tuple[int, ...]) -> list[int]:
    """The errno of each system call (number, arguments) under the filter."""
    command = [sys.executable, "-I", "-S", "-c", IN_PROCESS, str(ROOT), program.hex(), json.dumps(calls)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return [int(line) for line in done.stdout.split()]


def made(decisions: Mapping[int, Decision], *, last: int = LAST) -> bytes:
    return assemble(AUDIT_ARCH[os.uname().machine], decisions, last=last, beyond=refuse(errno.ENOSYS))


@requirement("box.system")
def test_calls_are_decided_by_number_on_both_sides_of_every_edge() -> None:
    """Close, numbers that nobody uses, each side of a refused call."""
    numbers = range(LAST - 20, LAST - 4)
    refused = {number: refuse(70 + number % 7) for number in numbers if number % 3 == 0}
    expected = [refused[number].action & 0xFFFF if number in refused else 0 for number in numbers]
    allowed = {number: refuse(0) for number in numbers if number not in refused}  # "success", and nothing is done
    assert errors(made(allowed | refused), *((number,) for number in numbers)) == expected


@requirement("box.system")
def test_a_table_of_hundreds_is_searched_across_far_jumps() -> None:
    numbers = range(LAST - 120, LAST + 1)
    table: dict[int, Decision] = {
        number: Match(0, {value: refuse(80 + (number + value) % 5) for value in range(5)}, refuse(79))
        for number in numbers
    }
    calls = [(number, value) for number in numbers[::7] for value in (0, 3, 5, -1)]
    assert len(made(table)) > 8 * 1_000
    assert errors(made(table), *calls) == [80 + (n + v) % 5 if 0 <= v < 5 else 79 for n, v in calls]


def test_a_filter_longer_than_the_kernel_takes_is_not_made() -> None:
    with pytest.raises(ValueError, match="too long"):
        made({number: Match(0, {value: refuse(value) for value in range(1, 100)}, ALLOW) for number in range(0, 60, 2)})


@requirement("box.system")
def test_arguments_are_masked_and_matched_by_their_low_half() -> None:
    table = {LAST: Match(2, {1: refuse(81), 2: Match(3, {7: refuse(82)}, refuse(83))}, refuse(84), mask=0xF)}
    high = 1 << 40
    calls = [(LAST, 0, 0, 0x11), (LAST, 0, 0, 0x32, 7), (LAST, 0, 0, 2, 8), (LAST, 0, 0, 3), (LAST, 0, 0, high | 1)]
    assert errors(made(table), *calls) == [81, 82, 83, 84, 81]


@requirement("box.system")
def test_calls_beyond_the_last_known_number_and_of_another_abi_do_not_exist() -> None:
    x32 = 0x4000_0000 | NUMBERS["x86_64"]["clone"]
    assert errors(made({}), (LAST + 1,), (500,), (-1,), (x32,)) == [errno.ENOSYS] * 4


@requirement("box.system")
def test_a_program_of_another_machine_is_killed() -> None:
    program = assemble(0x4000_0003, {}, last=LAST, beyond=ALLOW)  # i386: as if ours were the foreign one
    command = [sys.executable, "-I", "-S", "-c", IN_PROCESS, str(ROOT), program.hex(), "[]"]
    assert subprocess.run(command, capture_output=True, timeout=30).returncode == -31  # SIGSYS


FLAGS = ("connections", "attributes", "others", "apart", "signals", "truncation")
KINDS = [FilterKind(**dict(zip(FLAGS, each, strict=True))) for each in product((False, True), repeat=len(FLAGS))]
REFUSED, ASKED = 99, 98


def marked(kind: FilterKind) -> bytes:
    """A filter with other errors in place of EPERM and of a notification: the kernel itself gives them for no call."""
    program = filter_for(kind)
    for action, error in ((0x0005_0000 | errno.EPERM, REFUSED), (NOTIFY.action, ASKED)):
        program = program.replace(
            struct.pack("=HBBI", 6, 0, 0, action), struct.pack("=HBBI", 6, 0, 0, 0x5_0000 | error)
        )
    return program


def errors_of(kind: FilterKind, *calls: tuple[str | int, ...]) -> list[int]:
    return errors(marked(kind), *((numbers()[str(name)], *map(int, rest)) for name, *rest in calls))


NEVER = """
ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd mount umount2 pivot_root chroot move_mount open_tree fsopen
fsmount mount_setattr unshare setns open_by_handle_at bpf perf_event_open userfaultfd kexec_load init_module
finit_module delete_module reboot swapon syslog settimeofday clock_settime sethostname fanotify_init keyctl add_key
request_key io_uring_setup io_uring_enter io_uring_register vhangup acct quotactl""".split()


@requirement("box.system")
def test_what_servers_never_need_is_refused_by_the_filter_itself() -> None:
    for kind in (FilterKind(), FilterKind(connections=True, attributes=True, others=True)):
        assert errors_of(kind, *((name, -1, -1, -1) for name in NEVER)) == [REFUSED] * len(NEVER)


@requirement("box.system")
def test_new_namespaces_are_refused_and_clone3_does_not_exist() -> None:
    calls = [("clone", flag | 17) for flag in (1 << 17, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30)]
    assert errors_of(FilterKind(), *calls, ("clone3", 0, 0)) == [REFUSED] * 7 + [errno.ENOSYS]


@requirement("box.network", "box.system")
def test_a_connection_cannot_be_put_off_and_a_file_cannot_be_held_from_others() -> None:
    kind = FilterKind(connections=True)
    fast_open = [("setsockopt", -1, 6, option) for option in (23, 30, 34)]
    assert errors_of(kind, *fast_open, ("setsockopt", -1, 6, 1)) == [errno.EOPNOTSUPP] * 3 + [errno.EBADF]
    held = [("fcntl", -1, command) for command in (1024, 1026)]
    assert errors_of(kind, *held, ("fcntl", -1, 1)) == [REFUSED] * 2 + [errno.EBADF]


@requirement("box.system")
def test_only_streams_are_made_where_the_gate_looks_at_connections() -> None:
    unix, inet, inet6, netlink, packet, vsock, alg = 1, 2, 10, 16, 17, 40, 38
    cloexec = int(socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    refused = [
        *((family, kind, 0) for family in (inet, inet6) for kind in (3, 5, 4)),
        *((inet, 1, protocol) for protocol in (132, 262, 255)),
        *((inet6, 2, protocol) for protocol in (6, 58, 136)),
        *((unix, kind, 0) for kind in (2, 3, 2 | cloexec)),
        *((netlink, 3, protocol) for protocol in (4, 9, 15)),
        *((family, kind, 0) for family in (packet, vsock, alg, 0, 99) for kind in (1, 2, 3)),
    ]
    assert errors_of(FilterKind(connections=True), *(("socket", *each) for each in refused)) == [REFUSED] * len(refused)
    asked = [(family, kind, protocol) for family in (inet, inet6) for kind in (2, 2 | cloexec) for protocol in (0, 17)]
    assert errors_of(FilterKind(connections=True), *(("socket", *each) for each in asked)) == [ASKED] * len(asked)
    made = [(unix, 1, 0), (unix, 5 | cloexec, 0), (inet, 1 | cloexec, 6), (inet6, 1, 0), (netlink, 3 | cloexec, 0)]
    assert errors_of(FilterKind(connections=True), *(("socket", *each) for each in made)) == [0] * len(made)
    pairs = [("socketpair", unix, kind, 0, 0) for kind in (1, 5, 2)]
    assert errors_of(FilterKind(connections=True), *pairs) == [errno.EFAULT, errno.EFAULT, REFUSED]
    tipc = ("socketpair", 30, 5, 0, 0)
    assert errors_of(FilterKind(connections=True), tipc) == errors_of(FilterKind(), tipc) == [REFUSED]
    assert errors_of(FilterKind(), pairs[0]) == [errno.EFAULT]


@requirement("box.system")
def test_connections_are_asked_about_and_not_made_by_sending() -> None:
    kind, fast = FilterKind(connections=True), 0x2000_0000
    assert errors_of(kind, ("bind", -1, 0, 0), ("connect", -1, 0, 0), ("listen", -1, 0)) == [ASKED] * 3
    sent = [("sendto", -1, 0, 0, fast | 0x40), ("sendmsg", -1, 0, fast), ("sendmmsg", -1, 0, 0, fast)]
    assert errors_of(kind, *sent, ("sendto", -1, 0, 0, 0x40)) == [errno.EOPNOTSUPP] * 3 + [errno.EBADF]
    by_way_of = [("setsockopt", -1, 0, 4), *(("setsockopt", -1, 41, option) for option in (5, 6, 57))]
    assert errors_of(kind, *by_way_of, ("setsockopt", -1, 6, 1)) == [REFUSED] * 4 + [errno.EBADF]
    assert errors_of(FilterKind(), ("connect", -1, 0, 0), ("socket", 2, 2, 0)) == [errno.EBADF, 0]


@requirement("box.siblings", "box.system")
def test_calls_that_name_another_process_are_refused_or_asked_about() -> None:
    calls: list[tuple[str | int, ...]] = [
        (name, 0, 12_345) if argument else (name, 12_345) for name, argument in OTHERS.items() if name != "ioprio_set"
    ]
    calls.append(("ioprio_set", 1, 12_345))
    assert errors_of(FilterKind(), *calls) == [REFUSED] * len(calls)
    assert errors_of(FilterKind(others=True), *calls) == [ASKED] * len(calls)
    groups = [("setpriority", 1, 0), ("setpriority", 2, 0), ("ioprio_set", 2, 0), ("ioprio_set", 3, 0)]
    assert errors_of(FilterKind(others=True), *groups) == [REFUSED] * 4
    own = [("prlimit64", 0, 7, 0, 0), ("setpriority", 0, 0, 19)]
    assert errors_of(FilterKind(), *own) == [0, 0]


@requirement("box.siblings")
def test_shared_memory_that_has_no_path_is_refused_without_a_namespace() -> None:
    calls = [("shmget", 1, 0, 0), ("msgget", 1, 0), ("semget", 1, 0, 0), ("mq_open", 0, 0)]
    assert errors_of(FilterKind(), *calls) == [REFUSED] * 4
    assert REFUSED not in errors_of(FilterKind(apart=True), *calls)


@requirement("box.siblings")
def test_signals_are_asked_about_where_the_kernel_does_not_keep_them_within() -> None:
    calls: list[tuple[str | int, ...]] = [("kill", 12_345, 0), ("kill", -1, 0), ("tgkill", 12_345, 12_345, 0)]
    assert errors_of(FilterKind(signals=True), *calls, ("kill", 0, 0)) == [ASKED] * 3 + [0]
    owner = [("pidfd_send_signal", -1, 0), ("fcntl", 0, 8, 1), ("ioctl", 0, 0x8901)]
    assert errors_of(FilterKind(signals=True), *owner) == [errno.ENOSYS, REFUSED, REFUSED]


@requirement("box.files")
def test_truncation_is_asked_about_where_the_kernel_does_not_look_at_it() -> None:
    opened = [("openat", -1, 0, flags, 0o644) for flags in (0o1000, 0o2001000, 0o1001, 0o1102, 0)]
    assert errors_of(FilterKind(truncation=True), ("truncate", 0, 0), *opened, ("openat2", -1, 0, 0, 0)) == [
        ASKED, REFUSED, REFUSED, errno.EFAULT, errno.EFAULT, errno.EFAULT, errno.ENOSYS,
    ]  # fmt: skip
    assert errors_of(FilterKind(), ("truncate", 0, 0), *opened) == [errno.EFAULT] * 6


@requirement("box.files", "box.system")
def test_no_file_is_made_with_the_bits_of_setuid_programs() -> None:
    calls: list[tuple[str | int, ...]] = [
        (name, *arguments, mode)
        for mode in (0o4755, 0o102755, 0o6000)
        for name, *arguments in (
            ("openat", -1, 0, 0o101), ("openat", -1, 0, 0o2020_0002), ("mknodat", -1, 0), ("mkdirat", -1, 0),
            ("fchmod", -1), ("fchmodat", -1, 0),
        )
    ]  # fmt: skip
    if "creat" in numbers():
        calls += [("open", 0, 0o100, 0o4755), ("creat", 0, 0o2755), ("mkdir", 0, 0o2755), ("chmod", 0, 0o4755)]
    assert errors_of(FilterKind(), *calls) == [REFUSED] * len(calls)
    plain = [("openat", -1, 0, 0, 0o4755), ("openat", -1, 0, 0o101, 0o1755), ("mkdirat", -1, 0, 0o1777)]
    assert errors_of(FilterKind(), *plain, ("openat2", -1, 0, 0, 0)) == [errno.EFAULT] * 3 + [errno.ENOSYS]
    watched = FilterKind(files=True, attributes=True)
    assert errors_of(watched, ("openat", -1, 0, 0), ("openat", -1, 0, 0o100, 0o644), *calls[:1]) == [
        ASKED, ASKED, REFUSED,
    ]  # fmt: skip


@requirement("box.files")
def test_attributes_of_files_are_asked_about() -> None:
    asked = [name for name in ATTRIBUTES if name in numbers()]
    assert errors_of(FilterKind(attributes=True), *((name, -1, -1) for name in asked)) == [ASKED] * len(asked)


@requirement("box.system")
@pytest.mark.parametrize("machine", sorted(NUMBERS))
def test_every_kind_is_assembled_for_every_machine(machine: str) -> None:
    table = NUMBERS[machine]
    assert len(set(table.values())) == len(table), "each number once"
    for kind in KINDS:
        by_number = {table[name]: each for name, each in decisions(kind).items() if name in table}
        assert 0 < len(assemble(AUDIT_ARCH[machine], by_number, last=LAST, beyond=ALLOW)) // 8 < 800
    named = set().union(*(decisions(kind) for kind in KINDS))
    assert named <= NUMBERS["x86_64"].keys()
