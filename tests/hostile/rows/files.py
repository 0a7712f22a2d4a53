"""Files: the operator's, the machine's, siblings'."""

from typing import Any

from tests.hostile.home import HOME, SECRETS, TEMPORARY
from tests.hostile.rows.row import Facts, Outcome, Row, canary, keeps, not_there, unchanged
from tests.hostile.stage import Called, Stage
from tests.support.gateway_process import ROOT

_CLOUD = ("aws", "gcloud", "azure", "kube", "npmrc", "netrc", "docker", "git", "history", "mozilla", "service-account")


def _path(name: str) -> Any:
    return lambda stage: {"path": str(SECRETS[name])}


def _of_sibling(stage: Stage) -> Facts:
    return {"path": stage.sibling["file"]}


def _steals(name: str, what: str, attack: str, secret: str, **more: Any) -> Row:
    """It reads the file with that secret."""
    return Row(name, what, f"files.{attack}", keeps(secret), facts=_path(secret), **more)


def _changes(name: str, what: str, attack: str, changed: str, **more: Any) -> Row:
    """It changes that canary."""
    return Row(name, what, f"files.{attack}", unchanged(changed), facts=canary(changed), **more)


def _reads() -> list[Row]:
    return [
        _steals("ssh", "reads ~/.ssh/id_ed25519", "read", "ssh"),
        _steals("ssh, Node", "the same, by Node", "read", "ssh", server="node"),
        _steals("ssh, sh", "the same, by cat", "read", "ssh", server="sh"),
        _steals("ssh, shell's child", "the same, by an interpreter that a shell starts", "read", "ssh", way="shell"),
        Row("home listing", "lists the operator's home", "files.home", _hidden_home, server="node"),
        Row("cloud credentials", "reads AWS, Google, Azure, Kubernetes, npm, git, Docker and browser credentials",
            "files.read_all", keeps(*_CLOUD), facts={"paths": [str(SECRETS[name]) for name in _CLOUD]}),
        _steals("shadow", "reads /etc/shadow", "read", "shadow", root="the file is root's"),
        _steals("gateway keys", "reads the gateway's key file", "read", "keys"),
        Row("gateway configuration", "reads the gateway's configuration", "files.read", keeps("configuration"),
            facts=canary("config")),
        Row("gateway store", "reads the gateway's SQLite store", "files.walk", keeps("store", "configuration", "keys"),
            facts={"path": str(HOME / "gateway")}),
        _steals("other server", "reads the .env of another server", "read", "other-server"),
        Row("configuration beside the code", "reads the configuration of MCP servers in the project of its own script",
            "files.read", _no_servers, facts={"path": str(ROOT / "mcp.json")}),
        Row("sibling's folder", "reads a file in its sibling's temporary folder", "files.read", keeps("sibling"),
            facts=_of_sibling),
        Row("folders of all", "walks through the folders of all sessions", "files.walk", keeps("sibling"),
            facts={"path": str(TEMPORARY)}),
        _steals("symlink", "reads ~/.ssh through a symbolic link in its own folder", "through_symlink", "ssh"),
        _steals("symlink, sh", "the same, by ln and cat", "through_symlink", "ssh", server="sh"),
        Row("hard link", "reads another server's file through a hard link in its own folder", "files.through_hardlink",
            keeps("sibling"), facts=lambda stage: {"path": stage.sibling["file"]}),
        _steals("O_PATH", "opens ~/.ssh by O_PATH and again through /proc/self/fd", "through_o_path", "ssh"),
        _steals("/proc/self/root", "reads ~/.ssh through /proc/self/root", "through_proc", "ssh", server="sh"),
        _steals("/proc/PID/root", "reads ~/.ssh through the root of other processes", "through_root_of_others", "ssh"),
    ]  # fmt: skip


def _writes() -> list[Row]:
    rows = [
        Row(f"write {name}", f"changes {words}", "files.write", unchanged(name), facts=canary(name))
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
        _changes("write bashrc, Node", "changes ~/.bashrc, by Node", "write", "bashrc", server="node"),
        _changes("write bashrc, sh", "changes ~/.bashrc, by sh", "write", "bashrc", server="sh"),
        Row("write /tmp", "leaves a file in /tmp", "files.write", not_there("/tmp/dropped"),
            facts={"path": "/tmp/dropped"}),
        _changes("remove", "removes another server's program", "remove", "other program"),
        _changes("rename out", "renames a file of its own over ~/.bashrc", "rename_out", "bashrc"),
        _changes("mode and times", "chmod, utime, setxattr, chown of another server's file", "open_up", "mode",
                 needs="seccomp or mount namespace"),
        Row("operator's terminal", "writes to the operator's terminal", "files.terminal", _quiet_terminal,
            facts=lambda stage: {"path": stage.terminal_path}),
    ]  # fmt: skip


def _hidden_home(stage: Stage, called: Called, facts: Facts) -> Outcome:
    return Outcome(".ssh" not in called.got, " ".join(called.text.split())[:100])


def _no_servers(stage: Stage, called: Called, facts: Facts) -> Outcome:
    return Outcome("mcpServers" not in called.text, called.text[:100])


def _quiet_terminal(stage: Stage, called: Called, facts: Facts) -> Outcome:
    return Outcome(facts["token"].encode() not in stage.typed(), called.text[:100])


ROWS = [*_reads(), *_writes()]
