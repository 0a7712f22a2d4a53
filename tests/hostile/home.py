"""The operator's home in the world, with something worth stealing in every place, and what tells whether it was."""

import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.hostile.namespaces import cover, cover_closed, place
from tests.hostile.outside import NAME_SERVER

HOME: Final = Path("/home/operator")
_PROGRAMS: Final = Path(__file__).with_name("servers")

TEMPORARY: Final = Path("/home/tmp")
"""The gateway's folder for temporary files: on the file system of the home, so that names can be moved between them."""


def word_of(name: str) -> str:
    """The secret that is kept there. Each is unlike the others, so that an answer tells where it is from."""
    return f"canary-{name}-c2VjcmV0"


SECRETS: Final = {
    "ssh": HOME / ".ssh/id_ed25519",
    "aws": HOME / ".aws/credentials",
    "gcloud": HOME / ".config/gcloud/application_default_credentials.json",
    "azure": HOME / ".azure/msal_token_cache.json",
    "kube": HOME / ".kube/config",
    "npmrc": HOME / ".npmrc",
    "netrc": HOME / ".netrc",
    "docker": HOME / ".docker/config.json",
    "git": HOME / ".git-credentials",
    "history": HOME / ".bash_history",
    "mozilla": HOME / ".mozilla/firefox/default/logins.json",
    "keys": HOME / "gateway/keys",
    "store": HOME / "gateway/sessions.db.copy",
    "other-server": HOME / "other/.env",
    "shadow": Path("/etc/shadow"),
    "service-account": Path("/run/secrets/kubernetes.io/serviceaccount/token"),
}
"""Where the secrets are, by name. The configuration's is beside them, in `gateway/mcp.json`."""

_CHANGEABLE: Final = {
    "bashrc": HOME / ".bashrc",
    "authorized": HOME / ".ssh/authorized_keys",
    "cron": Path("/var/spool/cron/crontabs/operator"),
    "npm cache": HOME / ".npm/_npx/0123456789abcdef/node_modules/tool/index.js",
    "uv cache": HOME / ".cache/uv/archive-v0/abc/tool/__init__.py",
    "program": HOME / "app/hostile.py",
    "other program": HOME / "other/server.py",
    "config": HOME / "gateway/mcp.json",
    "mode": HOME / "other/mode",
}


@dataclass
class Home:
    """The files, for a user. `names` has the path of each canary."""

    user: int
    names: dict[str, Path] = field(default_factory=dict)
    _before: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    @staticmethod
    def cover() -> None:
        """Empty folders in the place of the machine's; once."""
        cover_closed()
        cover("/tmp", size_mb=16, mode="1777")
        cover("/home", size_mb=384)
        cover("/run", size_mb=16)
        cover("/dev/shm", size_mb=384, mode="1777")
        cover("/var/spool", size_mb=4)
        if Path("/var/tmp").is_dir():
            cover("/var/tmp", size_mb=4, mode="1777")
        place("/etc/resolv.conf", f"nameserver {NAME_SERVER}\noptions timeout:1 attempts:1\n")
        place("/etc/hosts", "127.0.0.1 localhost\n::1 localhost ip6-localhost\n")
        place("/etc/shadow", f"root:{word_of('shadow')}:20000:0:99999:7:::\n", 0o600)

    def fill(self) -> None:
        """Make everything anew."""
        for child in HOME.parent.iterdir():
            shutil.rmtree(child) if child.is_dir() else child.unlink()
        HOME.mkdir(mode=0o755)
        TEMPORARY.mkdir()
        TEMPORARY.chmod(0o1777)
        for name, path in SECRETS.items():
            if name != "shadow":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{word_of(name)}\n", encoding="ascii")
                path.chmod(0o600)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(HOME / "venv")], check=True)
        shutil.copytree(_PROGRAMS, HOME / "app", ignore=shutil.ignore_patterns("__pycache__"))
        self.names = {**_CHANGEABLE, "site-packages": self._site_packages() / "canary.py"}
        for name, path in self.names.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_text(f"# {name}\n", encoding="ascii")
        (HOME / ".ssh").chmod(0o700)
        for folder in (HOME, Path("/var/spool/cron"), Path("/run/secrets")):
            for path in (folder, *folder.rglob("*")):
                os.chown(path, self.user, self.user, follow_symlinks=False)
        self._setuid_program()
        self.look()

    @property
    def python(self) -> str:
        return str(HOME / "venv/bin/python")

    @staticmethod
    def _site_packages() -> Path:
        return HOME / f"venv/lib/python3.{sys.version_info.minor}/site-packages"

    def _setuid_program(self) -> None:
        """`id`, with the owner's rights: root's for an ordinary user, an ordinary user's for root."""
        path = Path("/home/id")
        shutil.copy(shutil.which("id") or "/usr/bin/id", path)
        os.chown(path, 0 if self.user else 65_534, -1)
        path.chmod(0o4755)

    def look(self) -> None:
        """Remember how everything is now."""
        self._before = {name: _seen(path) for name, path in self.names.items()}

    def changed(self, name: str) -> bool:
        """Whether that canary is other than it was: content, mode, owner, times, attributes, or gone."""
        return _seen(self.names[name]) != self._before[name]

    def mend(self) -> list[str]:
        """Put what was changed back, and say what it was."""
        found = [name for name in self.names if self.changed(name)]
        for name in found:
            content, mode, owner, changed_ns, *_ = self._before[name]
            path = self.names[name]
            path.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            os.chown(path, owner, owner)
            path.chmod(stat.S_IMODE(mode))
            os.utime(path, ns=(changed_ns, changed_ns))
        return found


def _seen(path: Path) -> tuple[Any, ...]:
    try:
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        return (content, status.st_mode, status.st_uid, status.st_mtime_ns, status.st_nlink, tuple(os.listxattr(path)))
    except OSError as error:
        return (error.errno,)
