"""The image: its parts are fixed, the locks hold what pyproject.toml asks for, its bill of materials is whole.

`make image-check` builds the image, and calls tools in it.
"""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.requirements import requirement
from tests.support.gateway_process import ROOT
from tests.tools import image_packages

pytestmark = requirement("ops.image")

DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
WITHOUT_DIGEST = {"prometheus", "grafana", "jaeger"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def locked(name: str) -> dict[str, tuple[Version, str]]:
    """Package → version, and the text of its entry."""
    text = (ROOT / "deploy" / name).read_text(encoding="utf-8")
    entries = re.findall(r"(?m)^(\S+)==(\S+)((?:.*\n)(?: .*\n)*)", text)
    return {canonicalize_name(package): (Version(version), rest) for package, version, rest in entries}


def asked_for() -> list[Requirement]:
    project = PROJECT["project"]
    in_image = (ROOT / "deploy/image.in").read_text(encoding="utf-8").splitlines()
    lines = [line for line in in_image if line and not line.startswith("#")]
    extras = project["optional-dependencies"]
    return [Requirement(one) for one in (*project["dependencies"], *extras["mcp"], *extras["tracing"], *lines)]


@pytest.mark.parametrize("name", ["requirements.lock", "build.lock"])
def test_each_locked_package_has_hashes_and_no_address(name: str) -> None:
    found = locked(name)
    assert found and all("--hash=sha256:" in entry for _, entry in found.values())
    assert "://" not in (ROOT / "deploy" / name).read_text(encoding="utf-8"), "the address of an index is a machine's"


def test_the_lock_has_what_pyproject_asks_for() -> None:
    found = locked("requirements.lock")
    for one in asked_for():
        version, _ = found[canonicalize_name(one.name)]
        assert version in one.specifier, f"{one}: the lock has {version}: make lock"
    built = {canonicalize_name(Requirement(one).name): Requirement(one) for one in PROJECT["build-system"]["requires"]}
    for name, wanted in built.items():
        assert locked("build.lock")[name][0] in wanted.specifier


def test_images_have_an_exact_tag_and_a_digest() -> None:
    images = dict(re.findall(r"(?m)^FROM (\S+@\S+) AS (\w+)$", DOCKERFILE))
    assert sorted(images.values()) == ["node", "python"]
    later = re.findall(r"(?m)^FROM (\S+)|--from=(\S+)", DOCKERFILE)
    assert {name for pair in later for name in pair if name} <= {*images, "python", "node", "build"}
    services = COMPOSE["services"]
    built = {service["image"] for service in services.values() if "build" in service}
    own = {name for name, service in services.items() if service["image"] in built}
    named = {name: service["image"] for name, service in services.items() if name not in own}
    for name, image in {**named, **{alias: image for image, alias in images.items()}}.items():
        tag, _, digest = image.partition("@")
        assert re.fullmatch(r".+:v?\d+\.\d+\.\d+(-[a-z-]+)?", tag), f"{image} names no exact version"
        assert (name in WITHOUT_DIGEST) is not bool(re.fullmatch(r"sha256:[0-9a-f]{64}", digest)), image


def test_the_image_installs_nothing_without_a_hash_and_runs_as_a_user() -> None:
    steps = re.findall(r"(?m)^RUN (.+(?:\n .+)*)", DOCKERFILE)
    installs = [part for step in steps for part in re.split(r"&&", step) if "pip install" in part]
    assert installs and all("--require-hashes" in part or "--no-index --no-deps" in part for part in installs)
    assert not re.search(r"curl|wget|ADD |amd64|arm64|x86_64|aarch64", DOCKERFILE), (
        "each architecture has what it needs"
    )
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.search(r"(?m)^USER gateway$", last) and "--uid 10001 gateway" in last


def test_the_image_is_built_of_what_dockerignore_lets_through() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = {word for line in re.findall(r"(?m)^COPY (?!--from)(.+)$", DOCKERFILE) for word in line.split()[:-1]}
    assert copied and {"deploy/*.lock" if word.endswith(".lock") else word for word in copied} == allowed
    assert all((ROOT / word).exists() for word in copied)


@pytest.mark.timeout(400)
def test_the_bill_of_materials_names_each_package_of_the_lock(tmp_path: Path) -> None:
    image_packages.sbom(tmp_path / "sbom.json")
    bill = json.loads((tmp_path / "sbom.json").read_text(encoding="utf-8"))
    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["name"] == "mcp-session-gateway"
    found = {canonicalize_name(part["name"]): Version(part["version"]) for part in bill["components"]}
    wanted = locked("requirements.lock")
    assert found == {name: wanted[name][0] for name in found}, "nothing that the lock does not have"
    assert {canonicalize_name(one.name) for one in asked_for()} <= found.keys()
    assert all(part["purl"].startswith("pkg:pypi/") for part in bill["components"])
