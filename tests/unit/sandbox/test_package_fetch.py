"""A fetch reaches the registries and proxies that the operator has named, wherever they are."""

from pathlib import Path

import pytest

from gateway.sandbox.host_name_lookups import Lookups
from gateway.sandbox.package_command import parse
from gateway.sandbox.package_fetch import (
    FetchFailed,
    FetchRequest,
    _fetched_by_uvx,
    _remove_all,
    places_of,
    registries_of,
)
from gateway.sandbox.untrusted_files import has_no_links
from tests.requirements import requirement
from transports.upstream.walls.network_rules import destination

pytestmark = requirement("box.package-registries")


def test_registries_are_found_in_words_variables_and_files(tmp_path: Path) -> None:
    npmrc, absent = tmp_path / ".npmrc", tmp_path / "uv.toml"
    npmrc.write_text("@me:registry=https://npm.example.com:4873/\nproxy=http://10.0.0.1:3128\nx=http://[::1\n")
    found = registries_of(
        "uv",
        ("uvx", "--index-url=https://mirror.example.com/simple", "server"),
        {"HTTPS_PROXY": "http://user:secret@proxy.example.com:8080", "UV_INDEX": "a=https://b.example.com/s,c"},
        [npmrc, absent],
    )
    own = {("pypi.org", 443), ("files.pythonhosted.org", 443), ("registry.npmjs.org", 443)}
    named = {("npm.example.com", 4873), ("10.0.0.1", 3128), ("proxy.example.com", 8080)}
    assert found - own == named | {("mirror.example.com", 443), ("b.example.com", 443)}
    assert own <= found and ("pypi.org", 443) not in registries_of("npm", (), {}, [])


async def test_their_addresses_are_grants_whatever_they_are() -> None:
    lookups = Lookups({"a.example.com": ["10.0.0.7", "fd00::7"], "10.0.0.1": ["10.0.0.1"]}.__getitem__)
    places = await places_of([("a.example.com", 4873), ("10.0.0.1", 80)], lookups)
    assert sorted(places) == ["10.0.0.1:80", "10.0.0.7:4873", "[fd00::7]:4873"]
    assert all(destination(place).network is not None for place in places)
    lookups.close()


@requirement("box.files")
async def test_a_symlink_that_a_package_has_left_in_its_copy_is_neither_granted_nor_followed(tmp_path: Path) -> None:
    copy, elsewhere = tmp_path / "copy", tmp_path / "elsewhere"
    (elsewhere / "wheels-v5").mkdir(parents=True)
    (elsewhere / "bin").mkdir()
    (elsewhere / "bin/server").write_text("")
    (elsewhere / "bin/server").chmod(0o755)
    copy.mkdir()
    (copy / "uv").symlink_to(elsewhere)
    (copy / "prefix").write_text(str(elsewhere))
    command = parse(("uvx", "server"))
    assert command is not None
    request = FetchRequest(command=command, env={}, home=str(tmp_path / "home"))
    with pytest.raises(FetchFailed, match="uv made no environment"):
        _fetched_by_uvx(request, copy, copy / "prefix", 0.0)
    with pytest.raises(FetchFailed, match="replaced by a link: uv"):
        await _remove_all(copy, [copy / "uv/wheels-v5"])
    assert (elsewhere / "wheels-v5").is_dir()
    assert not has_no_links(copy, copy / "made/../../elsewhere/bin"), "it is not below the copy"
