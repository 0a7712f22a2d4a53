"""Builds the walls around the process that calls, in the order in which each step still has the rights it needs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

from transports.upstream.walls import landlock, limits, namespaces, seccomp
from transports.upstream.walls.file_watch import watches
from transports.upstream.walls.kernel import Kernel, probe
from transports.upstream.walls.spec import Reach, Walls

__all__ = ["WallsFailed", "arrange", "build", "prepare"]


class WallsFailed(Exception):
    """A wall could not be built, so nothing may run. The message is a sentence for the operator."""


def prepare() -> None:
    """Find out what the kernel can, and assemble all filters that may be needed. Forked processes inherit both."""
    kernel = probe()
    for reach, apart in product((None, Reach()), (False, True)) if not kernel.filters else ():
        walls = Walls(profile="", grants=(), reach=reach)
        seccomp.filter_for(_filter_kind(walls, kernel, apart=apart))


def arrange(walls: Walls, no_namespaces: str = "") -> None:
    """What the reaper does for the walls before it forks the server. In a reaper with namespaces: mounts.
    `no_namespaces` says why it has none although these walls want them.

    Raises:
        WallsFailed: nothing may be started behind these walls on this kernel, or a step failed.
    """
    missing = replace(probe(), namespaces=no_namespaces).missing(walls) if walls.required else ()
    if missing:
        raise WallsFailed(f"The sandbox {walls.profile!r} is required, and cannot hold here. {' '.join(missing)}")
    if namespaces.is_apart():
        with _step(walls, "namespaces"):
            namespaces.separate(walls)


def build(walls: Walls, hand_over: Callable[[int], None], *, apart: bool) -> None:
    """Build what the kernel can of these walls. For good, and for all processes that this one will start.

    What the filter asks about is announced on a descriptor, which `hand_over` has to give to the reaper, and to close.
    `apart`: the reaper is the first process of its namespaces.

    Raises:
        WallsFailed: which step failed, and why.
    """
    kernel = probe()
    grants = walls.grants
    if apart:
        grants += namespaces.own_grants()
    with _step(walls, "limits"):
        limits.limit(walls.limits)
        limits.forbid_new_privileges()
        limits.drop_capabilities()
    if kernel.landlock:
        with _step(walls, "files"):
            listen = None if walls.reach is None or kernel.gate else walls.reach.listen
            landlock.restrict(grants, version=kernel.landlock, listen=listen)
    if not kernel.filters:
        with _step(walls, "system calls"):
            kind = _filter_kind(walls, kernel, apart=apart)
            announced = seccomp.install(seccomp.filter_for(kind), listener=kind.asks)
            if announced is not None:
                hand_over(announced)


def _filter_kind(walls: Walls, kernel: Kernel, *, apart: bool) -> seccomp.FilterKind:
    if kernel.gate:
        return seccomp.FilterKind(apart=apart)
    return seccomp.FilterKind(
        connections=walls.reach is not None,
        attributes=True,
        others=not apart,
        files=watches(walls, kernel.landlock),
        apart=apart,
        signals=kernel.landlock < 6 and not apart,
        truncation=kernel.landlock < 3 and not apart and walls.watch != "everything",
    )


@contextmanager
def _step(walls: Walls, step: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        what = f"{error.strerror}: {error.filename!r}" if isinstance(error, OSError) and error.filename else str(error)
        raise WallsFailed(f"The sandbox {walls.profile!r} could not be built ({step}): {what}") from error
