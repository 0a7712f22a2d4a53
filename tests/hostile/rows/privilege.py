"""More rights, and a longer life."""

import subprocess
from pathlib import Path
from typing import Any

from tests.hostile.home import SECRETS
from tests.hostile.rows.row import Facts, Judge, Outcome, Row, keeps, no_answer, processes_gone
from tests.hostile.stage import Called, Stage

__all__ = ["ROWS"]

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


def _no_objects(stage: Stage, called: Called, facts: Facts) -> Outcome:
    """System V objects, message queues and shared memory do not outlive their session."""
    left = [
        f"{kind} {line.split()[0]}"
        for kind in ("shm", "msg")
        for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]
        if int(line.split()[0]) == facts["key"]
    ]
    file = Path("/dev/shm/left-behind")
    if file.exists():
        left.append("file")
        file.unlink()
    if left:
        for option in ("-M", "-Q"):
            subprocess.run(["ipcrm", option, str(facts["key"])], capture_output=True, check=False)
    return Outcome(not left, f"left behind: {', '.join(left)}" if left else called.text[:100])


def _no_note(stage: Stage, called: Called, facts: Facts) -> Outcome:
    """The next session finds nothing of the last."""
    found = stage.attack("python", "persistence.note_from_last", dict(facts))
    for folder in (*map(Path, facts["folders"]), Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")):
        (folder / "note-for-next").unlink(missing_ok=True)
    reached = facts["token"] in found.got
    return Outcome(not reached, f"the next session {found.got}"[:100] if reached else called.text[:100])


def _unprivileged(stage: Stage, called: Called, facts: Facts) -> Outcome:
    return Outcome(called.got.endswith(" 1"), called.text)


def _raised(stage: Stage, called: Called, facts: Facts) -> Outcome:
    return Outcome("has none" not in called.got and "RLIMIT" not in called.got, called.text[:100])


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
    _row("no_new_privs", "asks the kernel whether it may get rights by exec", "new_privileges", _unprivileged,
         needs="no_new_privs"),
    _row("namespaces", "unshare, clone and clone3 with new namespaces", "new_namespaces"),
    _row("setns", "joins the namespaces of others", "joined_namespace", root="it needs a capability"),
    _row("mount", "mounts, with a user namespace of its own", "mounted"),
    _row("chroot", "leaves by chroot and reads ~/.ssh", "out_of_chroot", keeps("ssh"),
         facts={"path": str(SECRETS["ssh"])}),
    _row("system calls", f"{len(_CALLS)} system calls that no server needs", "calls_nobody_needs",
         facts=lambda stage: {"calls": _CALLS}),
    _row("userfaultfd", "handles page faults of its own", "fault_handler"),
    _row("bpf", "loads a map into the kernel", "programs_in_kernel", root="it needs a capability here"),
    _row("keyring", "keeps a key in the user's keyring, which all sessions share", "keyring"),
    _row("perf", "counts what others do", "measured_cpu", root="it needs a capability here"),
    _row("personality", "switches random addresses off", "fixed_addresses"),
    _row("module", "loads a kernel module", "kernel_module", root="it needs a capability"),
    _row("kernel log", "reads the kernel's log", "kernel_log", root="it needs a capability here"),
    _row("kernel setting", "writes to /proc/sys", "kernel_setting", needs="landlock", root="the files are root's"),
    _row("host name", "changes the host's name", "host_name", root="it needs a capability"),
    _row("TIOCSTI", "types into a terminal", "typed_for_others"),
    _row("own limits", "raises its own limits", "higher_limits", _raised, needs="rlimit"),
    _row("devices", "opens the machine's memory, disks, /dev/kvm, /dev/fuse", "devices", needs="landlock",
         root="the files are root's"),
]  # fmt: skip
_STAYS = [
    _leaves("daemon", "leaves a daemon that ignores signals", "daemon"),
    _leaves("daemon, sh", "the same, by setsid", "daemon", server="sh"),
    _leaves("runner", "leaves a process that forks and ends for ever", "runner"),
    Row("kernel objects", "leaves shared memory and queues for its next session", "ipc.left_behind", _no_objects,
        needs="seccomp"),
    Row("notes", "leaves a word for its next session wherever it may write", "persistence.note_for_next", _no_note),
    Row("oom_score_adj of its own", "lowers its own oom_score_adj", "processes.live_longest",
        lambda stage, called, facts: Outcome(called.got.strip() != "0", called.text[:80]), needs="oom_score_adj",
        root="lowering it needs a capability, and without walls it is never raised"),
]  # fmt: skip

ROWS = [*_MORE, *_STAYS]
