"""`gateway.upstreams.factory`: targets of `in_process` servers are imported, or it is told what failed."""

import sys
from pathlib import Path

import pytest

from gateway.config.faults import ConfigurationError
from gateway.upstreams.factory import load_object
from tests.requirements import requirement


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module `operators_module` that can be imported; a test writes it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "operators_module", raising=False)
    return tmp_path / "operators_module.py"


@requirement("ops.check")
@pytest.mark.parametrize(
    ("target", "source", "fault"),
    [
        ("no_such_module:app", "", "ModuleNotFoundError: No module named 'no_such_module' (modules are looked for in "),
        ("operators_module:other", "app = 1\n", "AttributeError: module 'operators_module' has no attribute 'other'"),
        ("operators_module:app", "import no_such_module\n", "No module named 'no_such_module' ({file}, line 1)"),
        ("operators_module:app", "app = 1\n\n1 / 0\n", "ZeroDivisionError: division by zero ({file}, line 3)"),
    ],
)
def test_a_target_that_does_not_import_is_told_with_the_line_that_failed(
    target: str, source: str, fault: str, module: Path
) -> None:
    module.write_text(source, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_object("mine", target)
    assert str(caught.value).startswith(f"mcpServers.mine.in_process: {target}: ")
    assert fault.format(file=module) in str(caught.value)


def test_a_target_is_found_by_its_attributes(module: Path) -> None:
    module.write_text("class Servers:\n    first = 'found'\n", encoding="utf-8")
    assert load_object("mine", "operators_module:Servers.first") == "found"
