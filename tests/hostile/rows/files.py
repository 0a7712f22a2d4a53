"""Files: the operator's, the machine's, siblings'."""

from typing import Any

from tests.hostile.home import HOME, SECRETS, TEMPORARY
from tests.hostile.rows.row import Facts, Outcome, Row, keeps, no_answer, not_there, unchanged
from tests.hostile.stage import Called, Stage

__all__ = ["ROWS"]

_CLOUD = ("aws", "gcloud", "azure", "kube", "npmrc", "netrc", "docker", "git", "history", "mozilla", "service-account")


def _path(name: str) -> Any:
    return lambda stage: {"path": str(SECRETS[name])}


def _canary(name: str) -> Any:
    return lambda stage: {"path": str(stage.home.names[name])}


def _of_sibling(stage: Stage) -> Facts:
    return {"path": stage.sibling["file"]}


def _reads() -> list[Row]:
    return [
        Row(name="ssh", what="reads ~/.ssh/id_ed25519", attack="files.read", facts=_path("ssh"), refused=keeps("ssh")),
        Row(
            name="ssh, Node",
            what="the same, by Node",
            server="node",
            attack="files.read",
            facts=_path("ssh"),
            refused=keeps("ssh"),
        ),
        Row(
            name="ssh, sh",
            what="the same, by cat",
            server="sh",
            attack="files.read",
            facts=_path("ssh"),
            refused=keeps("ssh"),
        ),
        Row(
            name="ssh, shell's child",
            what="the same, by an interpreter that a shell starts",
            way="shell",
            attack="files.read",
            facts=_path("ssh"),
            refused=keeps("ssh"),
        ),
        Row(
            name="home listing",
            what="lists the operator's home",
            server="node",
            attack="files.home",
            refused=_hidden_home,
        ),
        Row(
            name="cloud credentials",
            what="reads AWS, Google, Azure, Kubernetes, npm, git, Docker and browser credentials",
            attack="files.read_all",
            facts=lambda stage: {"paths": [str(SECRETS[name]) for name in _CLOUD]},
            refused=keeps(*_CLOUD),
        ),
        Row(
            name="shadow",
            what="reads /etc/shadow",
            attack="files.read",
            facts=_path("shadow"),
            refused=keeps("shadow"),
            root="the file is root's",
        ),
        Row(
            name="gateway keys",
            what="reads the gateway's key file",
            attack="files.read",
            facts=_path("keys"),
            refused=keeps("keys"),
        ),
        Row(
            name="gateway configuration",
            what="reads the gateway's configuration",
            attack="files.read",
            facts=_canary("config"),
            refused=keeps("configuration"),
        ),
        Row(
            name="gateway store",
            what="reads the gateway's SQLite store",
            attack="files.walk",
            facts=lambda stage: {"path": str(HOME / "gateway")},
            refused=keeps("store", "configuration", "keys"),
        ),
        Row(
            name="other server",
            what="reads the .env of another server",
            attack="files.read",
            facts=_path("other-server"),
            refused=keeps("other-server"),
        ),
        Row(
            name="sibling's folder",
            what="reads a file in its sibling's temporary folder",
            attack="files.read",
            facts=_of_sibling,
            refused=keeps("sibling"),
        ),
        Row(
            name="folders of all",
            what="walks through the folders of all sessions",
            attack="files.walk",
            facts=lambda stage: {"path": str(TEMPORARY)},
            refused=keeps("sibling"),
        ),
        Row(
            name="symlink",
            what="reads ~/.ssh through a symbolic link in its own folder",
            attack="files.through_symlink",
            facts=_path("ssh"),
            refused=keeps("ssh"),
        ),
        Row(
            name="symlink, sh",
            what="the same, by ln and cat",
            server="sh",
            attack="files.through_symlink",
            facts=_path("ssh"),
            refused=keeps("ssh"),
        ),
        Row(
            name="hard link",
            what="reads another server's file through a hard link in its own folder",
            attack="files.through_hardlink",
            facts=lambda stage: {"path": stage.sibling["file"]},
            refused=keeps("sibling"),
        ),
        Row(
            name="dots",
            what="reads ~/.ssh by `..` from its own folder",
            attack="files.through_dots",
            facts=_path("ssh"),
            refused=keeps("ssh"),
        ),
        Row(
            name="O_PATH",
            what="opens ~/.ssh by O_PATH and again through /proc/self/fd",
            attack="files.through_o_path",
            facts=_path("ssh"),
            refused=keeps("ssh"),
        ),
        Row(
            name="/proc/self/root",
            what="reads ~/.ssh through /proc/self/root",
            attack="files.through_proc",
            server="sh",
            facts=_path("ssh"),
            refused=keeps("ssh"),
        ),
        Row(
            name="/proc/PID/root",
            what="reads ~/.ssh through the root of other processes",
            attack="files.through_root_of_others",
            facts=_path("ssh"),
            refused=keeps("ssh"),
        ),
        Row(
            name="file handle",
            what="opens ~/.ssh by its number (open_by_handle_at)",
            attack="files.through_handle",
            facts=_path("ssh"),
            refused=keeps("ssh"),
            root="it needs a capability",
        ),
        Row(
            name="inotify",
            what="watches the operator's home for what is opened",
            attack="files.watch",
            facts=lambda stage: {"path": str(HOME / ".ssh")},
            refused=no_answer,
            needs="seccomp or mount namespace",
        ),
    ]


def _writes() -> list[Row]:
    rows = [
        Row(
            name=f"write {name}",
            what=f"changes {words}",
            attack="files.write",
            facts=_canary(name),
            refused=unchanged(name),
        )
        for name, words in (
            ("bashrc", "~/.bashrc"),
            ("authorized", "~/.ssh/authorized_keys"),
            ("cron", "the operator's crontab"),
            ("npm cache", "a package in the npm cache, which other sessions execute"),
            ("uv cache", "a package in the uv cache"),
            ("site-packages", "the interpreter's site-packages"),
            ("program", "its own program, which the next session executes"),
            ("other program", "another server's program"),
            ("config", "the gateway's configuration"),
        )
    ]
    return [
        *rows,
        Row(
            name="write bashrc, Node",
            what="changes ~/.bashrc, by Node",
            server="node",
            attack="files.write",
            facts=_canary("bashrc"),
            refused=unchanged("bashrc"),
        ),
        Row(
            name="write bashrc, sh",
            what="changes ~/.bashrc, by sh",
            server="sh",
            attack="files.write",
            facts=_canary("bashrc"),
            refused=unchanged("bashrc"),
        ),
        Row(
            name="write /tmp",
            what="leaves a file in /tmp",
            attack="files.write",
            facts=lambda stage: {"path": "/tmp/dropped"},
            refused=not_there("/tmp/dropped"),
        ),
        Row(
            name="autostart",
            what="makes ~/.config/systemd/user/x.service",
            attack="files.make",
            facts=lambda stage: {"path": str(HOME / ".config/systemd/user/x.service")},
            refused=not_there(str(HOME / ".config/systemd/user/x.service")),
        ),
        Row(
            name="remove",
            what="removes another server's program",
            attack="files.remove",
            facts=_canary("other program"),
            refused=unchanged("other program"),
        ),
        Row(
            name="truncate",
            what="empties another server's program by truncate(2)",
            attack="files.truncate",
            facts=_canary("other program"),
            refused=unchanged("other program"),
            needs="landlock 3",
        ),
        Row(
            name="rename in",
            what="renames another server's program into its own folder",
            attack="files.rename_in",
            facts=_canary("other program"),
            refused=unchanged("other program"),
        ),
        Row(
            name="rename out",
            what="renames a file of its own over ~/.bashrc",
            attack="files.rename_out",
            facts=_canary("bashrc"),
            refused=unchanged("bashrc"),
        ),
        Row(
            name="exchange",
            what="exchanges a file of its own with ~/.bashrc (renameat2)",
            attack="files.exchange",
            facts=_canary("bashrc"),
            refused=unchanged("bashrc"),
        ),
        Row(
            name="mode and times",
            what="chmod, utime, setxattr, chown of another server's file",
            attack="files.open_up",
            facts=_canary("mode"),
            refused=unchanged("mode"),
            needs="seccomp or mount namespace",
        ),
        Row(
            name="special files",
            what="makes a pipe, a socket and a device in /tmp",
            attack="files.special",
            facts=lambda stage: {"path": "/tmp/special"},
            refused=not_there("/tmp/special"),
        ),
        Row(
            name="folder as link",
            what="puts a link in the place of its own folder",
            attack="files.replace_folder",
            facts=lambda stage: {"path": str(HOME / "other")},
            refused=no_answer,
        ),
        Row(
            name="operator's terminal",
            what="writes to the operator's terminal",
            attack="files.terminal",
            facts=lambda stage: {"path": stage.terminal_path},
            refused=_quiet_terminal,
        ),
        Row(
            name="lock",
            what="holds a lock on the gateway's files",
            attack="files.lock",
            facts=lambda stage: {"path": str(SECRETS["keys"])},
            refused=no_answer,
        ),
    ]


def _hidden_home(stage: Stage, called: Called, facts: Facts) -> Outcome:
    return Outcome(".ssh" not in called.got, " ".join(called.text.split())[:100])


def _quiet_terminal(stage: Stage, called: Called, facts: Facts) -> Outcome:
    return Outcome(facts["token"].encode() not in stage.typed(), called.text[:100])


ROWS = [*_reads(), *_writes()]
