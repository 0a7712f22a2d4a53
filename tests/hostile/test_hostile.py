"""The corpus of hostile servers is sound, and each of them attacks: without walls they succeed."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.namespaces import missing
from tests.hostile.rows import ALL, QUICK
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


@pytest.mark.skipif(bool(missing()), reason=missing() or "nothing is missing")
def test_hostile_servers_attack() -> None:
    """A behaviour that fails without walls would show nothing about walls."""
    command = [sys.executable, "-m", "tests.hostile.run", "--quick", "--json", "--profile", "off"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert ran.stdout, ran.stderr
    found = json.loads(ran.stdout)
    assert {each["row"] for each in found} == QUICK
    assert [each for each in found if each["verdict"] in ("OPEN", "shows nothing")] == [], ran.stderr
