"""What a sandbox lets a session touch, in lines for people."""

from typing import Any

from gateway.sandbox.explained import lines_of
from gateway.sandbox.system_paths import system_grants

FOUND: dict[str, Any] = {
    "sessions": ("direct", "sandboxed"), "profile": "strict", "chosen_by": "the default", "required": False,
    "launcher": (), "execute": ["/usr"], "package": None, "read": [], "write": ["/dev/null"],
    "reach": {"public": False, "hosts": [], "never": []}, "sockets": [], "listen": [],
    "limits": {"memory_mb": 64}, "cgroup": "none", "watch": False, "variables": {},
    "not_granted": [], "withheld": [], "missing": [], "shared": [],
}  # fmt: skip


def test_what_is_granted_besides_the_system_has_a_line_each() -> None:
    system = [grant.path for grant in system_grants() if grant.mode == "r"]
    own = ["/srv/data", "/etc/notes.conf"]
    found = [lines_of("box", FOUND | {"read": paths}) for paths in ([*system, *own], own)]
    with_system, without = ([line for line in lines if line.startswith("  read: ")] for lines in found)
    assert with_system == [
        "  read: /srv/data",
        "  read: /etc/notes.conf",
        f"  read: {len(system)} files and folders of the system, which every sandbox has (--json has their names)",
    ]
    assert without == with_system[:2]
