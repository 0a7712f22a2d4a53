"""The doctor reports rules that trust announced workspaces."""

from typing import Any

import pytest

from gateway.config.settings import Settings
from gateway.doctor.announced_workspaces import check_workspaces
from tests.requirements import requirement


@requirement("wall.provenance")
@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"trust_announced_workspace": True}, "any client may take any workspace"),
        ({"rules": [{"workspaces": ["team-*"], "trust": "direct"}]}, "policy.rules[0].workspaces"),
        ({"workspaces": {"a": {}, "*": {}}}, "policy.workspaces.a"),
        ({"rules": [{"workspaces": ["team-*"]}, {"principals": ["api-key:*"], "workspace": "team-a"}]}, ""),
        ({"rules": [{"workspaces": ["*"], "trust": "direct"}]}, ""),
    ],
)
def test_what_announced_workspaces_do_is_found_out(policy: Any, words: str) -> None:
    [finding] = check_workspaces(Settings.model_validate({"gateway": {"policy": policy}}))
    assert (finding.state, words in finding.what) == ("warning" if words else "ok", True)
