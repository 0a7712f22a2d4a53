"""What this machine's kernel lacks of what walls are made of."""

import ctypes
import functools
import os
import platform
import subprocess
from typing import Final

_LANDLOCK: Final = 444


@functools.cache
def _landlock() -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(_LANDLOCK, None, 0, 1))


@functools.cache
def _user_namespaces() -> bool:
    drop = ["setpriv", "--reuid", "65534", "--clear-groups"] if os.geteuid() == 0 else []
    return subprocess.run([*drop, "unshare", "--user", "true"], capture_output=True, check=False).returncode == 0


def missing_feature(needs: str) -> str:
    """Why this kernel cannot refuse a row that needs that; empty where it can."""
    name, _, version = needs.partition(" ")
    if name == "landlock" and _landlock() < int(version or 1):
        return f"Landlock {version or 1} (this kernel: {max(_landlock(), 0)})"
    if "namespace" in needs and not _user_namespaces():
        return "user namespaces (this kernel refuses them)"
    if name == "user_notif" and tuple(map(int, platform.release().split(".")[:2])) < (5, 14):
        return f"Linux 5.14 (this kernel: {platform.release()})"
    return ""
