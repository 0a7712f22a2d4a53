"""The corpus of hostile servers is sound, and a sandbox refuses what they do.

`make hostile` runs all of it under each profile, and shows that each row succeeds without walls.
"""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.namespaces import missing
from tests.hostile.rows import ALL, QUICK
from tests.requirements import requirement
from tests.support.commands import ROOT

PROGRAMS = {"node": "hostile.mjs", "sh": "hostile.sh"}


def test_every_row_has_its_behaviour() -> None:
    for row in ALL:
        if row.server == "python":
            module, _, function = row.attack.partition(".")
            assert callable(getattr(importlib.import_module(f"tests.hostile.servers.attacks.{module}"), function))
        else:
            program = Path(__file__).with_name("servers") / PROGRAMS[row.server]
            assert re.search(
                rf"(\"|^ *){re.escape(row.attack)}(\"|\))", program.read_text(encoding="utf-8"), re.MULTILINE
            )


def test_rows_have_names_of_their_own() -> None:
    names = [row.name for row in ALL]
    assert len(set(names)) == len(names) >= 25
    assert set(names) >= QUICK


@requirement("box.hostile")
@pytest.mark.skipif(bool(missing()), reason=missing() or "nothing is missing")
def test_a_sandbox_refuses_what_hostile_servers_do() -> None:
    command = [sys.executable, "-m", "tests.hostile.run", "--quick", "--json", "--profile", "standard"]
    command += ["--user", "nobody"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert ran.stdout, ran.stderr
    found = json.loads(ran.stdout)
    assert {each["row"] for each in found} == QUICK
    assert [each for each in found if each["verdict"] not in ("held", "works", "open", "not here")] == [], ran.stderr
