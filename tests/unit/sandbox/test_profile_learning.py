"""What a server has touched becomes the fewest grants, and nothing dangerous among them."""

from typing import Any

import pytest

from gateway.sandbox.profile_learning import Learnt, learnt, merge_tables
from tests.requirements import requirement
from transports.upstream.walls.wall_specification import Grant

pytestmark = requirement("box.learn")

GRANTS = (Grant(path="/usr", mode="rx"), Grant(path="/etc/hosts"), Grant(path="/dev/null", mode="rw"))


def of(*touched: tuple[str, str], **names: str) -> Learnt:
    addresses = {address: name for name, address in names.items()}
    return learnt(touched, names=addresses, grants=GRANTS, own=("/own",))


def test_what_the_profile_or_another_grant_grants_anyway_is_left_out() -> None:
    found = of(("x", "/usr/bin/node"), ("r", "/etc/hosts"), ("w", "/dev/null"), ("w", "/own/home"), ("r", "/proc/stat"))
    assert (found.table, found.remarks) == ({"profile": "strict"}, [])
    assert of(("w", "/usr/lib/x")).table["write"] == ["/usr/lib/x"], "reading alone is granted there"
    found = of(("r", "/srv/a/x"), ("w", "/srv/a"), ("w", "/srv/a/x"))
    assert found.table == {"profile": "strict", "write": ["/srv/a"]}


def test_many_files_of_a_folder_are_the_folder() -> None:
    found = of(*(("r", f"/srv/data/{name}") for name in "abcd"), ("r", "/srv/one"), ("x", "/srv/data/sub/tool"))
    assert found.table["read"] == ["/srv/data", "/srv/one"]
    assert found.remarks == ["it reads 4 things in /srv/data: the folder is granted as a whole"]
    found = of(*(("r", f"/etc/{name}.conf") for name in "abcdef"))
    assert found.table["read"] == [f"/etc/{name}.conf" for name in "abcdef"], "never a folder of the system"


@pytest.mark.parametrize(
    "touched",
    [
        *(("r", "/home/ann/.ssh/id_ed25519"), ("r", "/etc/shadow"), ("w", "/home/ann/.aws/credentials")),
        *(("socket", "/run/docker.sock"), ("socket", "/tmp/ssh-x/agent.7"), ("connect", "169.254.169.254:80")),
    ],
)
def test_what_is_dangerous_is_remarked_on_first_and_not_granted(touched: tuple[str, str]) -> None:
    found = of(("r", "/etc"), touched)
    assert found.table == {"profile": "strict"}
    assert found.remarks[0].startswith("DANGER: it ") and touched[1] in found.remarks[0]
    assert "/etc itself" in found.remarks[1]


def test_hosts_are_named_as_they_were_found() -> None:
    found = of(
        *(("connect", "93.184.215.14:443"), ("connect", "93.184.215.15:443"), ("connect", "10.0.0.5:5432")),
        *(("connect", "127.0.0.1:8123"), ("connect", "[2606:2800::1]:80"), ("connect", "[::1]:9000")),
        *(("listen", "127.0.0.1 9000"), ("listen", "0.0.0.0 8080"), ("listen", "127.0.0.1 45123")),
        *(("socket", "/run/postgresql/.s.PGSQL.5432"), ("socket", "/own/tmp/x")),
        **{"api.example.com": "93.184.215.14", "db.internal": "10.0.0.5"},
    )
    assert found.table == {
        "profile": "strict",
        "reach": ["10.0.0.5:5432", "93.184.215.15:443", "[2606:2800::1]:80", "api.example.com:443", "localhost:8123"],
        "sockets": ["/run/postgresql/.s.PGSQL.5432"],
        "listen": [8080, 9000],
    }
    found.add_unused(["api.example.com", "telemetry.example.com", "telemetry.example.com"])
    assert [remark for remark in found.remarks if "asked for" in remark] == [
        "it asked for the name telemetry.example.com and reached no public address of it: reach, if it should"
    ]
    assert any(remark.startswith("db.internal is 10.0.0.5, a private address") for remark in found.remarks)
    assert any("port 45123, which the kernel may have chosen" in remark for remark in found.remarks)


def test_what_was_learnt_in_several_runs_adds_up() -> None:
    first = {"profile": "strict", "read": ["/srv/a", "/srv/b/x"], "reach": ["localhost:1"], "listen": [80]}
    second = {"profile": "strict", "read": ["/srv/b", "/srv/c/y"], "write": ["/srv/c"], "listen": [80, 443]}
    both = first | {"read": ["/srv/a", "/srv/b"], "write": ["/srv/c"], "listen": [80, 443]}
    assert merge_tables(first, second) == both == merge_tables(second, first) == merge_tables(both, second)
    assert merge_tables({}, first) == first
    wrong: dict[str, Any]
    for wrong in ({"mcpServers": {}}, {"read": "/srv"}, {"listen": ["80"]}):
        with pytest.raises(ValueError):
            merge_tables(wrong, first)
