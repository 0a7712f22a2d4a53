"""The variables of a server's processes."""

from typing import Any

import pytest

from gateway.config.sessions import EnvironmentValue
from gateway.context.child_environment import ChildEnvironment
from tests.requirements import requirement


@requirement("ctx.env-names")
def test_a_process_of_no_session_has_each_variable_and_keeps_its_own_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    given: Any = {
        "WORKSPACE": "workspace", "HOME": "temp_dir", "TMPDIR": "temp_dir", "LANG": "agent",
        "USER_ID": {"field": "principal", "default": "nobody"},
    }  # fmt: skip
    monkeypatch.setenv("LANG", "C.UTF-8")
    names = {
        name: EnvironmentValue.model_validate({"field": value} if isinstance(value, str) else value)
        for name, value in given.items()
    }
    parts: Any = dict.fromkeys(("facts", "rules", "secrets", "folders"))
    found = ChildEnvironment("notes", names, {}, **parts).without_session()
    assert found == {"WORKSPACE": "", "USER_ID": "nobody"}
