"""What processes have, and what is left, as /proc and cgroups say."""

import os
from pathlib import Path

import pytest

from gateway.observability import process_memory as module
from gateway.observability.process_memory import (
    HeapTrimming,
    machine_memory,
    proportional_bytes,
    resident_bytes,
    tree_bytes,
)
from tests.requirements import requirement

pytestmark = requirement("ops.memory")

MIB = 1 << 20


def test_a_process_has_its_share_of_pages_that_it_has_in_common() -> None:
    own, resident = proportional_bytes(os.getpid()), resident_bytes()
    assert own is not None and resident is not None and MIB < own <= resident
    assert proportional_bytes(2**22 + 1) is resident_bytes(2**22 + 1) is None


def test_of_many_processes_the_largest_are_read_and_no_other_counts_more(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = range(100, 600), range(600, 662)  # the small ones were started first
    resident = dict.fromkeys(small, MIB) | dict.fromkeys(large, 8 * MIB)
    proportional = dict.fromkeys(small, MIB // 8) | dict.fromkeys(large, 7 * MIB)
    monkeypatch.setattr(module, "trees", lambda tops, most: {7: [7, *small, *large], 8: [8], 9: [9, 1, 600]})
    monkeypatch.setattr(module, "resident_bytes", resident.get)
    monkeypatch.setattr(module, "proportional_bytes", proportional.get)
    assert tree_bytes([7, 8, 9]) == {
        7: module.REAPER_BYTES + 62 * 7 * MIB + 500 * MIB // 8,
        9: module.REAPER_BYTES + 7 * MIB,
    }
    resident |= dict.fromkeys(small[2:], 4096)  # less than the smallest that is read
    assert tree_bytes([7])[7] == module.REAPER_BYTES + 62 * 7 * MIB + 2 * MIB // 8 + 498 * 4096


def test_the_limit_of_a_cgroup_counts_where_it_is_lower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = machine_memory()
    assert whole is not None and 0 < whole.available <= whole.total
    inner, outer, top = (tmp_path / name for name in ("inner", "outer", "top"))
    for folder, most in ((inner, "max"), (outer, str(64 * MIB))):
        folder.mkdir()
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{60 * MIB}\n")
        (folder / "memory.stat").write_text(f"anon 1\ninactive_file {10 * MIB}\nactive_file {20 * MIB}\n")
    monkeypatch.setattr(module, "own_cgroup_folders", lambda: [str(inner), str(outer), str(top)])
    assert machine_memory() == (64 * MIB, 34 * MIB)


def test_free_memory_is_given_back_in_a_quiet_second_when_the_process_has_grown() -> None:
    size, now, used, trimmed = [100], [0.0], [0.0], list[float]()
    free = [0]

    def trim(pad: int) -> None:
        trimmed.append(now[0])
        size[0] -= free[0]
        free[0] = 0

    trimming = HeapTrimming(own=lambda: size[0] << 20, trim=trim, clock=lambda: now[0], used=lambda: used[0])

    def looked(at: float, *, is_short: bool = False) -> bool:
        now[0] = at
        trimming.trim_if_due(is_short=is_short)
        return trimmed[-1:] == [at]

    size[0], free[0] = 115, 15
    assert not looked(1), "has not grown by 16 MiB"
    size[0] = 400
    used[0] += 0.2
    assert not looked(2), "is busy"
    assert looked(3), "and all of it is in use"
    free[0] = 300
    assert not looked(13) and looked(23), "the longer wait of a trim that gave nothing back"
    size[0], free[0] = 400, 300
    assert looked(33), "the last one gave something back"
    size[0] = 400
    assert looked(43) and not looked(53)
    free[0] = 300
    used[0] += 9.0
    assert looked(54, is_short=True), "whatever the wait, and though it is busy"
    HeapTrimming(own=lambda: None, trim=None).trim_if_due(is_short=True)
