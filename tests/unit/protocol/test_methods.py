"""The table of methods is the only list of methods, and a new row is enough for a new method."""

import ast
from pathlib import Path
from typing import Any

from mcp.shared.inbound import NAME_BEARING_METHODS
from mcp_types.methods import (
    CACHEABLE_METHODS,
    CLIENT_NOTIFICATIONS,
    CLIENT_REQUESTS,
    INPUT_REQUIRED_METHODS,
    SERVER_NOTIFICATIONS,
    SERVER_REQUESTS,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

import gateway.protocol.methods as methods
from gateway.protocol.extensions import SKILLS
from gateway.protocol.methods import (
    CACHEABLE,
    LISTS,
    MAY_ASK,
    METHODS,
    RECORDED,
    ROWS,
    SERVER_METHODS,
    may_be_relayed,
    metric_label,
)
from tests.requirements import requirement
from tests.test_architecture import SOURCES, tree_of
from transports.era import HANDSHAKE_VERSIONS, MODERN_VERSIONS, NAME_SOURCES, OF_ONE_RESOURCE, REMOVED, SESSIONLESS

ROOT = Path(__file__).parents[3]
NAMES = {row.name for row in ROWS}

OWN_BEHAVIOUR = {
    *("initialize", "notifications/initialized", "ping"),  # are the gateway's own, as is what its probe asks for
    *("server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"),
    *("logging/setLevel", "notifications/message"),  # a level that the gateway keeps for its servers
    "skills/list",  # whose entries get their server where URIs collide
    *("resources/subscribe", "resources/unsubscribe"),  # subscriptions that it keeps for them
    *("subscriptions/listen", "notifications/subscriptions/acknowledged"),  # spread over servers of both eras
    *("tools/call", "elicitation/create"),  # decided on by tool and arguments; differs between the eras
    "sampling/createMessage",  # needs a part of its capability for tools
    "notifications/elicitation/complete",  # may be told only to the client that was asked
    *("tasks/cancel", "tasks/get", "tasks/update", "tasks/result", "tasks/list"),  # those of the gateway, too
    *("notifications/tasks/status", "notifications/cancelled", "notifications/progress"),  # go to one task or call
}
"""Methods that other modules may name, and why."""

ENDS_OF_THE_WIRE = {"gateway/demo_server.py", "gateway/doctor/running_gateways.py"}
"""A server and a client of their own: no part of the relay."""

TABLES = {"gateway/protocol/methods.py", "transports/era.py"}
"""The table, and those of its columns that the wires read. A test below compares both."""


def named_in(node: ast.AST) -> set[str]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and each.value in NAMES}


def test_no_other_module_lists_methods_or_names_one_without_behaviour_of_its_own() -> None:
    literals, found = (ast.Tuple, ast.List, ast.Set, ast.Dict), set()
    for path in SOURCES:
        name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        if name in ENDS_OF_THE_WIRE | TABLES or not any(f'{each}"' in text for each in NAMES):
            continue
        tree = tree_of(path)
        named = named_in(tree)
        assert named <= OWN_BEHAVIOUR, name
        found |= named
        for node in ast.walk(tree) if len(named) > 1 else ():
            assert not isinstance(node, literals) or len(named_in(node)) < 2, f"{name}:{node.lineno}"
    assert found == OWN_BEHAVIOUR


@requirement("wall.decoded")
def test_the_table_has_every_method_of_every_revision_once_for_each_sender() -> None:
    known_here: tuple[tuple[Any, Any, bool], ...] = (
        *((CLIENT_REQUESTS, METHODS, True), (CLIENT_NOTIFICATIONS, METHODS, False)),
        *((SERVER_REQUESTS, SERVER_METHODS, True), (SERVER_NOTIFICATIONS, SERVER_METHODS, False)),
    )
    for known, ours, is_request in known_here:
        for method, revision in known:
            assert ours[method].is_request is is_request, method
            assert ("modern" if revision >= "2026-07-28" else "legacy") in ours[method].eras, (method, revision)
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert METHODS.keys() | SERVER_METHODS.keys() == NAMES
    assert METHODS.keys() & SERVER_METHODS.keys() == {row.name for row in ROWS if row.sender == "both"}


def test_the_columns_agree_with_the_protocol() -> None:
    of_skills = {row.name for row in ROWS if row.extension}  # an extension, so not the SDK's
    assert set(CACHEABLE_METHODS) == CACHEABLE - of_skills
    assert set(INPUT_REQUIRED_METHODS) == MAY_ASK
    tasks = dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")  # an extension, so not the SDK's
    assert NAME_SOURCES == {**NAME_BEARING_METHODS, **tasks}
    assert NAME_SOURCES == {name: METHODS[name].named for name in NAME_SOURCES}
    assert {"server/discover", *LISTS} == SESSIONLESS
    assert OF_ONE_RESOURCE == RECORDED - {"logging/setLevel"}
    of_era = {
        versions: {method for method, version in CLIENT_REQUESTS if version in versions}
        for versions in (HANDSHAKE_VERSIONS, MODERN_VERSIONS)
    }
    assert of_era[HANDSHAKE_VERSIONS] - of_era[MODERN_VERSIONS] == REMOVED
    assert SESSIONLESS - of_skills <= of_era[MODERN_VERSIONS]
    assert HANDSHAKE_VERSIONS == HANDSHAKE_PROTOCOL_VERSIONS and MODERN_VERSIONS == MODERN_PROTOCOL_VERSIONS


@requirement("spec.skills")
def test_a_method_of_an_extension_is_for_servers_that_declare_it() -> None:
    def offered(**capabilities: Any) -> list[str]:
        return [name for name, row in METHODS.items() if row.extension and row.is_offered(capabilities)]

    assert METHODS["tools/list"].is_offered({}), "servers answer for themselves"
    wrong: tuple[Any, ...] = (None, [], {}, {SKILLS: None}, {SKILLS: True})
    for extensions in wrong:
        assert not offered(extensions=extensions)
    for settings in ({}, {"directoryRead": False}, {"directoryRead": 1}):
        assert offered(extensions={SKILLS: settings}) == ["skills/list", "skills/get"]
    assert "resources/directory/read" in offered(extensions={SKILLS: {"directoryRead": True}})


def test_no_client_adds_a_label_to_metrics() -> None:
    assert metric_label("tools/call") == "tools/call"
    assert metric_label("tasks/get") == metric_label("no/such") == metric_label("notifications/message") == "other"


def test_a_row_is_all_that_a_new_method_needs() -> None:
    path = ROOT / "gateway/protocol/methods.py"
    row = '_list("widgets/list", "resources", "widgets", "id"),'
    source = path.read_text(encoding="utf-8").replace("ROWS: Final = (", f"ROWS: Final = ({row}")
    table: dict[str, Any] = {"__name__": methods.__name__}
    exec(compile(source, str(path), "exec"), table)
    assert table["LISTS"]["widgets/list"] == "widgets"
    assert "widgets/list" in table["CACHEABLE"] & table["REPEATABLE"]
    assert table["metric_label"]("widgets/list") == "widgets/list"
    assert "id" in {row.item_key for row in table["lists_of"]("resources")}


LOOK_ALIKES = (
    *("", " ", "/", "com.acme/\x00", "com.acme/a b", "sampling/CreateMessage"),
    *("tools/c\u0430ll", "tools\u2044call", "\uff54ools/call"),
    *("tools/call\n", "tools/call ", "tools/call/", "tools/call\u200b"),
)


@requirement("ext.relay")
def test_neither_a_method_of_mcp_in_any_case_nor_what_looks_like_one_or_like_nothing_passes() -> None:
    assert not [each for each in LOOK_ALIKES for kind in (True, False) if may_be_relayed(each, is_request=kind)]
    for row in ROWS:
        for name in (row.name, row.name.upper(), row.name.title()):
            assert not may_be_relayed(name, is_request=row.is_request), name


@requirement("ext.relay")
def test_other_names_pass_but_a_request_is_not_named_like_a_notification() -> None:
    for method in ("notifications/com.acme/changed", "Notifications/com.acme/changed"):
        assert not may_be_relayed(method, is_request=True) and may_be_relayed(method, is_request=False)
    for method in ("$/cancelRequest", "com.acme/search/query", "strange", "tools/callAll"):
        assert may_be_relayed(method, is_request=True) and may_be_relayed(method, is_request=False)
