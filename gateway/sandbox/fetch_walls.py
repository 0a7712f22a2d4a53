"""Makes the walls of fetches: npx and uvx write to one folder and reach registries."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gateway.sandbox.runtime_paths import runtime_paths
from gateway.sandbox.system_paths import real, system_grants
from transports.upstream.walls.spec import Grant, Limits, Reach, Walls

__all__ = ["WallsOfFetches"]

_FILES = 8_192


class WallsOfFetches:
    """The walls of each step of a fetch. `reach` are hosts beyond public ones, and `closed` are addresses that no grant
    opens. With `required`, nothing is fetched where the kernel lacks a part of the walls."""

    def __init__(self, *, reach: Sequence[str], closed: Sequence[str], required: bool) -> None:
        self._reach = Reach(public=True, names=True, hosts=tuple(reach), refused=tuple(closed))
        self._required = required

    def __call__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        cwd: str,
        read: Sequence[str],
        write: str,
        reach: Sequence[str],
    ) -> Walls:
        """The walls of one step (`FetchWalls`)."""
        runtime = runtime_paths(argv[:1], env.get("PATH", ""), cwd, env.get("HOME", "/"))
        for program in filter(os.path.isfile, read):  # the Python of an installed tool
            runtime.include(runtime_paths((program,), "", cwd, env.get("HOME", "/")))
        read = [*runtime.code, *(path for path in read if os.path.exists(path))]
        return Walls(
            profile="fetch",
            grants=(
                *system_grants(),
                *(Grant(path=real(path), mode="rx", optional=True) for path in dict.fromkeys(map(real, read))),
                Grant(path=real(write), mode="rwx"),
            ),
            reach=replace(self._reach, hosts=(*self._reach.hosts, *reach)),
            limits=Limits(files=_FILES),
            temporary=real(write),
            required=self._required,
        )
