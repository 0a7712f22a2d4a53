"""Build the walls (sandbox restrictions) around the calling process. The order of the steps leaves each step the rights
that it needs."""

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product

from transports.upstream.walls import landlock, namespaces, resource_limits, seccomp
from transports.upstream.walls.file_watch import watches
from transports.upstream.walls.kernel_support import Kernel, probe
from transports.upstream.walls.wall_specification import Grant, Reach, Walls


class WallsFailed(Exception):
    """A part of the walls could not be built, so the server must not run. The message is a sentence for the
    operator."""


def not_enforced(walls: Walls, missing: Iterable[str]) -> WallsFailed:
    """Return the error for required walls that cannot be enforced. `missing`: sentences that say what is missing."""
    return WallsFailed(f"The sandbox {walls.profile!r} is required, but cannot be enforced here. {' '.join(missing)}")


def prepare() -> None:
    """Find out what the kernel supports, and assemble all seccomp filters that may be needed. Forked processes inherit
    both results."""
    kernel = probe()
    for reach, apart, left in product((None, Reach()), (False, True), (False, True)) if not kernel.filters else ():
        walls = Walls(profile="", grants=(), reach=reach)
        seccomp.filter_for(_filter_kind(walls, kernel, apart=apart, has_left=left))


def arrange(walls: Walls, no_namespaces: str = "", *, apart: bool, has_mounts: bool) -> tuple[Grant, ...]:
    """Arrange the mounts of this process and its reaper as the walls require, before the process becomes the server.
    Return grants for the server's own /tmp and /dev/shm. If the reaper has neither namespaces (`apart`) nor mounts of
    its own (`has_mounts`), arrange nothing, and return no grants. `no_namespaces` says why the reaper has no namespaces
    although these walls want them; empty: it has them, or they are not wanted.

    Raises:
        WallsFailed: the walls are required but cannot be enforced on this kernel, or a step failed.
    """
    missing = replace(probe(), namespaces=no_namespaces).missing(walls) if walls.required else ()
    if missing:
        raise not_enforced(walls, missing)
    try:
        if apart:
            return namespaces.separate(walls)
        return namespaces.place_folders(walls) if has_mounts else ()
    except (OSError, ValueError) as error:
        raise _failed(walls, "namespaces" if apart else "mounts", error) from error


def ruleset_for(walls: Walls) -> int | None:
    """Return the descriptor of a Landlock ruleset for these walls, which does not restrict any process yet; None if the
    kernel has no Landlock. The caller owns the descriptor. Raises `OSError`."""
    kernel = probe()
    if not kernel.landlock:
        return None
    listen, connects = _ports(walls.reach, has_gate=not kernel.gate)
    return landlock.ruleset(walls.grants, version=kernel.landlock, listen=listen, connects=connects)


def _ports(reach: Reach | None, *, has_gate: bool) -> tuple[tuple[int, ...] | None, bool]:
    """Return the TCP ports that Landlock has to let a process bind (None: any), and whether Landlock has to let the
    process connect by TCP.

    With a gate, the gate makes the connections, and checks and reports listen calls, so Landlock lets the process bind
    any port. But if the kernel may choose a port (0 is among the granted ones), Landlock allows just the granted ports,
    because only the kernel knows which one it chose. Without a gate, Landlock refuses what its rules can express: other
    ports, and all connections if none is granted.
    """
    if reach is None:
        return None, True
    if has_gate:
        return reach.listen if 0 in reach.listen else None, False
    return reach.listen, bool(reach.public or reach.hosts)


def build(
    walls: Walls,
    hand_over: Callable[[int], None],
    ruleset: int | None = None,
    own: tuple[Grant, ...] = (),
    *,
    apart: bool,
) -> None:
    """Build these walls around this process and its later descendants, for good, as far as the kernel supports them.

    The seccomp filter announces system calls on a descriptor. `hand_over` has to pass this descriptor to the reaper,
    and to close it. `apart`: the reaper is the first process of its namespaces. `ruleset` has the Landlock rules of
    these walls, and is for this process alone. `own` grants are added to these rules.

    Raises:
        WallsFailed: a step failed. The message says which, and why.
    """
    kernel = probe()
    step = "limits"
    try:  # a context manager for each step would take longer than the limits
        resource_limits.limit(walls.limits)
        step = "network"
        has_left = apart and _leave_network(walls, kernel)
        step = "limits"
        resource_limits.forbid_new_privileges()
        resource_limits.drop_capabilities()
        step = "files"
        if kernel.landlock:
            rules = ruleset_for(walls) if ruleset is None else ruleset
            assert rules is not None  # there is Landlock
            landlock.allow(rules, own, version=kernel.landlock)
            landlock.restrict(rules)
            os.close(rules)
        step = "system calls"
        if not kernel.filters:
            kind = _filter_kind(walls, kernel, apart=apart, has_left=has_left)
            announced = seccomp.install(seccomp.filter_for(kind), listener=kind.asks)
            if announced is not None:
                hand_over(announced)
    except (OSError, ValueError) as error:
        raise _failed(walls, step, error) from error


def _leave_network(walls: Walls, kernel: Kernel) -> bool:
    """Move this process, which has namespaces of its own, to an empty network. Return True if it may still use the
    machine's network through sockets that its gate makes. Raises `OSError`."""
    reach = walls.reach
    if reach is None:
        return False
    reaches = bool(reach.public or reach.names or reach.hosts or reach.listen)
    if reaches and kernel.gate:  # without a gate, nobody could make its sockets
        return False
    try:
        namespaces.leave_network()
    except OSError:  # a limit is reached; only the addresses of others' sockets are seen then
        if walls.required:
            raise
        return False
    return reaches


def _filter_kind(walls: Walls, kernel: Kernel, *, apart: bool, has_left: bool) -> seccomp.FilterKind:
    if kernel.gate:
        return seccomp.FilterKind(apart=apart)
    return seccomp.FilterKind(
        connections=walls.reach is not None,
        sockets=has_left and walls.reach is not None,
        attributes=True,
        others=not apart,
        files=watches(walls, kernel.landlock),
        apart=apart,
        signals=kernel.landlock < 6 and not apart,
        truncation=kernel.landlock < 3 and not apart and walls.watch != "everything",
    )


def _failed(walls: Walls, step: str, error: OSError | ValueError) -> WallsFailed:
    what = f"{error.strerror}: {error.filename!r}" if isinstance(error, OSError) and error.filename else str(error)
    return WallsFailed(f"The sandbox {walls.profile!r} could not be built ({step}): {what}")
