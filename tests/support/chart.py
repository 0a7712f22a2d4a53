"""The Helm chart of `deploy/`, rendered by Helm."""

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.tools.obtain import helm

CHART = Path(__file__).parents[2] / "deploy" / "chart"
USUAL = (
    "existingSecret=mcp-session-gateway",
    "existingConfig=mcp-session-gateway",
    "allowedHosts={mcp.example.com}",
    "proxies={10.0.0.10/32}",
)


def rendered(*values: str) -> list[dict[str, Any]]:
    """The manifests for these values (`NAME=VALUE`); a RuntimeError with Helm's words if Helm refuses them."""
    options = [part for value in values for part in ("--set", value)]
    command = [str(helm()), "template", "mcp-session-gateway", str(CHART), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [part for part in yaml.safe_load_all(done.stdout) if part]


@cache
def usual() -> dict[str, dict[str, Any]]:
    """The manifests with a Secret and a ConfigMap of the user, by kind."""
    return {part["kind"]: part for part in rendered(*USUAL)}
