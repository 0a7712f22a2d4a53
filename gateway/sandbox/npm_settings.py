"""The operator's settings of npm, for those steps of a fetch that may see all of them, and for those that may not."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gateway.sandbox.foreign_files import write_new

__all__ = ["npm_settings", "without_keys"]

_SECRET_NPM_SETTINGS: Final = ("_", "cert", "email", "key", "otp", "password", "username")


def npm_settings(variables: Mapping[str, str], home: str) -> list[str]:
    """The operator's file of npm's settings."""
    given = next((v for k, v in variables.items() if k.lower() == "npm_config_userconfig"), "")
    path = given or str(Path(home, ".npmrc"))
    return [path] if os.path.isfile(path) else []


def without_keys(variables: Mapping[str, str], home: str, copy: Path) -> dict[str, str]:
    """The environment of an npm that runs code of packages: with the operator's settings, without access to
    registries. Raises `OSError`."""
    settings = copy / "npmrc"
    write_new(copy, settings, _without_access(npm_settings(variables, home)))
    ours = {
        "HOME": str(copy / "home"),
        "npm_config_cache": str(copy / "npm"),
        "npm_config_update_notifier": "false",
        "npm_config_userconfig": str(settings),
    }
    return {k: v for k, v in variables.items() if not _gives_access(_npm_setting(k))} | ours


def _npm_setting(variable: str) -> str:
    """The setting of npm that a variable has; empty if it has none."""
    name = variable.lower()
    return name.removeprefix("npm_config_") if name.startswith("npm_config_") else ""


def _without_access(files: Sequence[str]) -> str:
    """npm's settings without what gives access to a registry: install scripts can read them."""
    lines = [line for path in files for line in Path(path).read_text("utf-8", "replace").splitlines()]
    return "".join(f"{line}\n" for line in lines if not _gives_access(line.partition("=")[0]))


def _gives_access(setting: str) -> bool:
    """Whether a setting of npm belongs to one registry, or is secret by its name."""
    return setting.strip().lower().startswith(("//", *_SECRET_NPM_SETTINGS))
