"""Walls reach the reaper as they left the gateway."""

import json
from dataclasses import replace

import pytest

from transports.upstream.walls.wall_specification import Grant, Limits, Reach, Walls

FULL = Walls(
    profile="strict",
    grants=(Grant(path="/usr", mode="rx"), Grant(path="/etc/hosts", optional=True)),
    common=1,
    reach=Reach(public=True, names=True, hosts=("10.1.0.0/16:5432",), refused=("127.0.0.1:80",), listen=(8123, 0)),
    limits=Limits(memory_bytes=1 << 30, processes=64, files=256, total_memory_bytes=2 << 30, processors=0.5),
    namespaces=True,
    temporary="/var/lib/own",
    required=True,
)


@pytest.mark.parametrize("walls", [FULL, Walls(profile="standard", grants=())], ids=["full", "empty"])
def test_walls_are_the_same_after_json(walls: Walls) -> None:
    assert Walls.from_json(json.loads(json.dumps(walls.to_json()))) == walls


@pytest.mark.parametrize("walls", [FULL, replace(FULL, reach=None)], ids=["reach", "everywhere"])
def test_walls_are_their_prototype_with_their_own_part(walls: Walls) -> None:
    given = walls if walls.reach is None else replace(walls, reach=replace(walls.reach, sockets=("/run/own.sock",)))
    prototype = given.prototype()
    assert prototype.grants == FULL.grants[:1] and prototype.temporary is None
    assert prototype == replace(given, grants=(*FULL.grants[:1], Grant("/other")), temporary="/other").prototype()
    assert prototype.with_own(json.loads(json.dumps(given.own()))) == given


def test_grants_and_limits_that_mean_nothing_cannot_be_made() -> None:
    for path in ("", "relative", "~/x", "/a\0b"):
        with pytest.raises(ValueError, match="is not an absolute path"):
            Grant(path=path)
    for mode in ("", "w", "x", "wx", "rwxs"):
        with pytest.raises(ValueError, match="is none of l, r, rx, rw, rwx"):
            Grant(path="/tmp", mode=mode)
    with pytest.raises(ValueError, match="at least 1"):
        Limits(processes=0)
