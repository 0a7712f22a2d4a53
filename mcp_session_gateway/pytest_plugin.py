"""Load the fixtures of `gateway.integrations.pytest_plugin`. An entry point of the package names this module.

If a folder of the app hides the packages, nothing of it is imported: a test that uses a fixture fails with the reason,
and all other tests of that environment run.
"""

import pytest

from mcp_session_gateway import hidden_package

if hidden := hidden_package():

    @pytest.fixture
    def mcp_session_store() -> None:
        """Fail with the reason."""
        pytest.fail(hidden, pytrace=False)

    @pytest.fixture
    def mcp_session() -> None:
        """Fail with the reason."""
        pytest.fail(hidden, pytrace=False)

else:
    pytest_plugins = ["gateway.integrations.pytest_plugin"]
