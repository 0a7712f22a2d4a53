"""The Skills extension: hosts of the TypeScript SDK, and servers of both SDKs, in both eras."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.requirements import requirement
from tests.support import skills_server
from tests.support.gateway_process import server
from tests.support.in_process_gateway import in_process_gateway
from tests.tools.obtain import node, npm_packages

HERE = Path(__file__).parent
ONE_ERA = str(HERE.parent / "support/single_era_server.py")
SDK = {"@modelcontextprotocol/server": "2.4.0", "@modelcontextprotocol/client": "2.4.0"}
ERAS = ("legacy", "modern")


def skill(folder: Path, path: str, body: str, **files: str) -> None:
    """Write a skill of that path, with further files."""
    place = folder / path
    place.mkdir(parents=True)
    head = f"---\nname: {place.name}\ndescription: {body}\n---\n"
    for name, text in {"SKILL.md": head + body, **files}.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)


def typescript(folder: Path, era: str) -> dict[str, Any]:
    """A server of the TypeScript SDK that speaks one era, and lists one skill on each page."""
    packages = npm_packages(SDK)
    script = shutil.copy(HERE / "skills_server.mjs", packages)  # beside node_modules, where its imports are looked for
    return server((sys.executable, ONE_ERA, era, str(node()), str(script), str(folder), "1"))


def python(folder: Path, era: str) -> dict[str, Any]:
    return server((sys.executable, ONE_ERA, era, sys.executable, "-m", skills_server.__name__, str(folder)))


def hosted(url: str, era: str) -> Any:
    """What a host of the TypeScript SDK finds: it gets and reads each skill, and verifies all files."""
    script = shutil.copy(HERE / "skills_ts.mjs", npm_packages(SDK))
    command = [str(node()), str(script), url, era]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return json.loads(finished.stdout)


BESIDE = {
    "legacy beside modern": ("legacy", "modern", python),
    "modern beside legacy": ("modern", "legacy", typescript),
}
"""The Python SDK 2.3 declares no extensions in a handshake, so that its servers have skills in one era only."""


@requirement("spec.skills", "spec.bridge")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ours", ERAS)
@pytest.mark.parametrize(("first", "second", "server_of_second"), [*BESIDE.values()], ids=BESIDE)
def test_a_host_reads_the_skills_of_two_servers(
    tmp_path: Path, ours: str, first: str, second: str, server_of_second: Callable[[Path, str], Any]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    skill(one, "git-workflow", "Commit so")
    skill(one, "acme/refunds", "Refund by one", **{"examples/email.md": "Dear by one"})
    skill(two, "acme/refunds", "Refund by two", **{"examples/letter.md": "Dear by two"})
    skill(two, "reports", "Report so")
    with in_process_gateway({"one": typescript(one, first), "two": server_of_second(two, second)}) as gateway:
        told = hosted(gateway.url, ours)
    both = "skill://two__/acme/refunds"
    assert sorted(told["skills"]) == [
        "skill://acme/refunds/SKILL.md",
        "skill://git-workflow/SKILL.md",
        "skill://reports/SKILL.md",
        f"{both}/SKILL.md",
    ]
    assert told["files"]["skill://acme/refunds/examples/email.md"] == "Dear by one"
    assert told["files"][f"{both}/examples/letter.md"] == "Dear by two"
    assert "Report so" in told["files"]["skill://reports/SKILL.md"]
    assert told["directoryRead"] and told["directories"]["skill://acme/refunds"] == [
        "skill://acme/refunds/SKILL.md",
        "skill://acme/refunds/examples",
    ]
    reads = server_of_second is typescript
    for root, child in (("skill://reports", "SKILL.md"), (both, "examples")):
        found = told["directories"][root]
        assert f"{root}/{child}" in found if reads else found == -32602, root
    assert told["unknown"] == -32602


@requirement("spec.skills")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ours", ERAS)
@pytest.mark.parametrize("theirs", ERAS)
def test_a_host_reads_the_skills_of_one_server(tmp_path: Path, ours: str, theirs: str) -> None:
    skill(tmp_path, "acme/refunds", "Refund so", **{"examples/email.md": "Dear"})
    skill(tmp_path, "git-workflow", "Commit so")
    with in_process_gateway({"one": typescript(tmp_path, theirs)}) as gateway:
        told = hosted(gateway.url, ours)
    assert told["skills"] == ["skill://acme/refunds/SKILL.md", "skill://git-workflow/SKILL.md"]
    assert told["directories"]["skill://git-workflow"] == ["skill://git-workflow/SKILL.md"]
    assert told["files"]["skill://acme/refunds/examples/email.md"] == "Dear" and told["unknown"] == -32602
    assert told.get("ttlMs") == ({"modern": 5_000, "legacy": 0}[theirs] if ours == "modern" else None)
