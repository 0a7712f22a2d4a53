"""Builds the walls around the process that calls, in the order in which each step still has the rights it needs."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from transports.upstream.walls import landlock, limits, seccomp
from transports.upstream.walls.kernel import Kernel, probe
from transports.upstream.walls.spec import Reach, Walls

__all__ = ["WallsFailed", "build", "check", "prepare"]


class WallsFailed(Exception):
    """A wall could not be built, so nothing may run. The message is a sentence for the operator."""


def prepare() -> None:
    """Find out what the kernel can, and assemble the usual filters: forked processes inherit both."""
    kernel = probe()
    if not kernel.filters:
        for reach in (None, Reach()):
            seccomp.filter_for(_filter_kind(Walls(profile="", grants=(), reach=reach), kernel))


def check(walls: Walls) -> None:
    """Raise `WallsFailed` if nothing may be started behind these walls on this kernel."""
    missing = probe().missing(walls) if walls.required else ()
    if missing:
        raise WallsFailed(f"The sandbox {walls.profile!r} is required, and cannot hold here. {' '.join(missing)}")


def build(walls: Walls, reaper: int) -> None:
    """Build what the kernel can of these walls. For good, and for all processes that this one will start.

    What the filter asks about is announced on a descriptor. It is sent to the reaper, with one byte, on its socket.

    Raises:
        WallsFailed: which step failed, and why.
    """
    kernel = probe()
    with _step(walls, "limits"):
        limits.limit(walls.limits, own_processes=False)
        limits.forbid_new_privileges()
        limits.drop_capabilities()
    if kernel.landlock:
        with _step(walls, "files"):
            listen = None if walls.reach is None or kernel.gate else walls.reach.listen
            landlock.restrict(walls.grants, version=kernel.landlock, listen=listen)
    if not kernel.filters:
        with _step(walls, "system calls"):
            kind = _filter_kind(walls, kernel)
            announced = seccomp.install(seccomp.filter_for(kind), listener=kind.asks)
            if announced is not None:
                to_reaper = socket.socket(fileno=reaper)
                socket.send_fds(to_reaper, [b"n"], [announced])
                to_reaper.detach()
                os.close(announced)


def _filter_kind(walls: Walls, kernel: Kernel) -> seccomp.FilterKind:
    if kernel.gate:
        return seccomp.FilterKind()
    return seccomp.FilterKind(
        connections=walls.reach is not None,
        attributes=True,
        others=True,
        processes=walls.limits.processes is not None,
        signals=kernel.landlock < 6,
    )


@contextmanager
def _step(walls: Walls, step: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        what = f"{error.strerror}: {error.filename!r}" if isinstance(error, OSError) and error.filename else str(error)
        raise WallsFailed(f"The sandbox {walls.profile!r} could not be built ({step}): {what}") from error
