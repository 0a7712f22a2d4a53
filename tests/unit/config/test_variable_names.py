"""`gateway.config.variable_names`: variables with the gateway's prefix that mean nothing to it."""

import re
from pathlib import Path

from gateway.config.settings import GatewaySettings
from gateway.config.variable_names import OTHER_NAMES, unknown_variables
from tests.requirements import requirement

ROOT = Path(__file__).parents[3]


@requirement("ops.misspelt")
def test_a_misspelt_variable_is_a_fault_with_the_name_that_was_meant() -> None:
    meant = {
        "MCP_GATEWAY_APIKEYS": "API_KEYS",
        "MCP_GATEWAY_KEY": "KEYS",
        "MCP_GATEWAY_PROT": "PORT",
        "MCP_GATEWAY_SESION__IDLE_TTL_S": "SESSION__IDLE_TTL_S",
        "MCP_GATEWAY_SESSION_IDLE_TTL_S": "SESSION__IDLE_TTL_S",
        "mcp_gateway_prot": "PORT",
    }
    faults, notes = unknown_variables(meant, GatewaySettings)
    assert not notes and faults == [
        f"the variable {variable}: no such setting; did you mean MCP_GATEWAY_{right}?"
        for variable, right in meant.items()
    ]
    below = unknown_variables(["MCP_GATEWAY_AUTH__PROXIS__NETWORKS__X"], GatewaySettings)
    assert below == ([], ()), "below a setting that exists, validation names the fault"


@requirement("ops.misspelt")
def test_names_of_others_are_told_and_not_refused() -> None:
    names = ["MCP_GATEWAY_SERVICE_HOST", "MCP_GATEWAY_PORT_8080_TCP_ADDR", "PATH", "MCP_GATEWAYS"]
    faults, notes = unknown_variables(names, GatewaySettings)
    assert not faults and [note.level for note in notes] == ["warning", "warning"]
    assert "MCP_GATEWAY_SERVICE_HOST is ignored" in notes[1].text


def test_every_variable_that_the_code_reads_is_known() -> None:
    """A variable that the code reads, and this list lacks, would be told to be unknown."""
    named: set[str] = set()
    for folder in ("gateway", "session_store", "transports"):
        for path in (ROOT / folder).rglob("*.py"):
            named |= set(re.findall(r"\"(MCP_GATEWAY_[A-Z_]*[A-Z])\"", path.read_text(encoding="utf-8")))
    assert named >= {f"MCP_GATEWAY_{name}" for name in OTHER_NAMES}
    faults, notes = unknown_variables(named, GatewaySettings)
    assert not faults and not notes
