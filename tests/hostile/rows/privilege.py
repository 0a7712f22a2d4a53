"""More rights, and a longer life."""

from pathlib import Path
from typing import Any

from tests.hostile.rows.row import Facts, Judge, Outcome, Row, canary, no_answer, processes_gone
from tests.hostile.stage import Called, Stage

_CALLS = [
    "acct", "add_key", "bpf", "delete_module", "fanotify_init", "finit_module", "fsmount", "fsopen", "init_module",
    "io_uring_setup", "kcmp", "kexec_load", "keyctl", "mount", "mount_setattr", "move_mount",
    "open_by_handle_at", "open_tree", "perf_event_open", "pidfd_getfd", "pivot_root", "process_madvise",
    "process_vm_readv", "process_vm_writev", "ptrace", "quotactl", "request_key", "setns", "swapoff", "swapon",
    "syslog", "umount2", "unshare", "userfaultfd", "migrate_pages", "move_pages",
]  # fmt: skip


def _same_user(stage: Stage, called: Called, facts: Facts) -> Outcome:
    other = "0" if stage.user else "65534"
    return Outcome(f"user {other}" != called.got.strip(), called.text[:100])


def _no_note(stage: Stage, called: Called, facts: Facts) -> Outcome:
    """The next session finds nothing of the last."""
    found = stage.attack("python", "persistence.note_from_last", dict(facts))
    for folder in (*map(Path, facts["folders"]), Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")):
        (folder / "note-for-next").unlink(missing_ok=True)
    reached = facts["token"] in found.got
    return Outcome(not reached, f"the next session {found.got}"[:100] if reached else called.text[:100])


def _row(name: str, what: str, attack: str, refused: Judge = no_answer, **more: Any) -> Row:
    given: dict[str, Any] = {"needs": "seccomp", **more}
    return Row(name, what, f"privilege.{attack}", refused, **given)


def _leaves(name: str, what: str, attack: str, **more: Any) -> Row:
    given: dict[str, Any] = {"needs": "", "already": "the reaper ends it", **more}
    return Row(name, what, f"persistence.{attack}", processes_gone, **given)


_MORE = [
    _row("setuid", "runs a program with another user's rights", "setuid_program", _same_user,
         facts={"path": "/home/id"}, needs="no_new_privs"),
    _row("setuid, sh", "the same, by sh", "setuid_program", _same_user, server="sh", facts={"path": "/home/id"},
         needs="no_new_privs"),
    _row("namespaces", "unshare, clone and clone3 with new namespaces", "new_namespaces"),
    _row("system calls", f"{len(_CALLS)} system calls that no server needs", "calls_nobody_needs",
         facts=lambda stage: {"calls": _CALLS}),
    _row("personality", "switches random addresses off", "fixed_addresses"),
    _row("TIOCSTI", "types into a terminal", "typed_for_others"),
    _row("devices", "opens the machine's memory, disks, /dev/kvm, /dev/fuse", "devices", needs="landlock",
         root="the files are root's"),
    _row("asynchronous requests", "takes all room for asynchronous requests of the machine (io_setup)",
         "asynchronous_requests"),
    _row("owner's requests", "seals a program that it may read, and makes subvolumes beside it (ioctl)",
         "owners_ioctls", facts=canary("program")),
]  # fmt: skip
_STAYS = [
    _leaves("daemon", "leaves a daemon that ignores signals", "daemon"),
    _leaves("daemon, sh", "the same, by setsid", "daemon", server="sh"),
    Row("notes", "leaves a word for its next session wherever it may write", "persistence.note_for_next", _no_note),
]  # fmt: skip

ROWS = [*_MORE, *_STAYS]
