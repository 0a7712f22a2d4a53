"""What processes have, and what is left, as /proc and cgroups say."""

import os
from pathlib import Path

import pytest

from gateway.observability import process_memory as module
from gateway.observability.process_memory import machine_memory, process_bytes, resident_bytes, tree_bytes
from tests.requirements import requirement

MIB = 1 << 20


@requirement("ops.memory")
def test_a_process_has_its_share_of_pages_that_it_has_in_common() -> None:
    own, resident = process_bytes(os.getpid()), resident_bytes()
    assert own is not None and resident is not None and MIB < own <= resident
    assert process_bytes(2**22 + 1) is resident_bytes(2**22 + 1) is None


def test_of_more_processes_than_are_read_each_counts_as_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "trees", lambda tops: {7: [7, *range(100, 300)], 8: [8], 9: [9, 1, 2]})
    monkeypatch.setattr(module, "process_bytes", lambda pid: None if pid == 1 else MIB)
    assert tree_bytes([7, 8, 9]) == {7: module.REAPER_BYTES + 200 * MIB, 9: module.REAPER_BYTES + MIB}


@requirement("ops.memory")
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
    assert machine_memory() == (64 * MIB, 34 * MIB, True)
