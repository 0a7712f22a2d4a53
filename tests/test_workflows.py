"""Workflows, issue forms and the compose file follow their published schemas. Workflows run existing make targets."""

import re
import tomllib
from pathlib import Path

import check_jsonschema  # type: ignore[import-untyped]  # it ships none
import pytest
import yaml
from click.testing import CliRunner, Result

from tests.requirements import requirement
from tests.support.gateway_process import ROOT

pytestmark = requirement("ops.workflows")

WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
FORMS = [ROOT / ".github/ISSUE_TEMPLATE/bug.yml", ROOT / ".github/ISSUE_TEMPLATE/idea.yml"]
SCHEMAS: list[tuple[str, list[Path]]] = [
    ("vendor.github-workflows", WORKFLOWS),
    ("custom.github-workflows-require-timeout", WORKFLOWS),
    ("vendor.github-issue-forms", FORMS),
    ("vendor.github-issue-config", [ROOT / ".github/ISSUE_TEMPLATE/config.yml"]),
    ("vendor.dependabot", [ROOT / ".github/dependabot.yml"]),
    ("vendor.compose-spec", [ROOT / "docker-compose.yml"]),
]


def validate(schema: str, *files: Path) -> Result:
    return CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", schema, *map(str, files)])


@pytest.mark.parametrize(("schema", "files"), SCHEMAS, ids=[schema for schema, _ in SCHEMAS])
def test_files_of_the_repository_follow_their_schema(schema: str, files: list[Path], tmp_path: Path) -> None:
    ran = validate(schema, *files)
    assert ran.exit_code == 0, ran.output
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("jobs: {a: {steps: 1}}\nbody: 1\nservices: 1\nblank_issues_enabled: 1\n", encoding="utf-8")
    assert validate(schema, wrong).exit_code == 1, "the schema refuses a wrong file"


def test_workflows_run_make_targets_that_exist() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
    used = {name for file in WORKFLOWS for name in re.findall(r"run: make ([a-z-]+)", file.read_text(encoding="utf-8"))}
    assert {"check", "test", "conformance"} <= used <= targets


def test_machines_of_github_get_the_programs_that_tests_run() -> None:
    """Tests install them only as root, which nobody is there."""
    script = (ROOT / ".github/programs.sh").read_text(encoding="utf-8")
    [installed] = re.findall(r"apt-get \S+ install (?:--\S+ )+\\\n +([a-z \-]+)$", script, re.MULTILINE)
    tools = {"buildah", "debootstrap", "qemu-system-x86", "virtiofsd"}  # of `make image-check` and `make kernels`
    there = {"chromium", "gcc"}
    files = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("bench/**/*.py")]
    asked = {name for file in files for name in re.findall(r'\bprogram\("[^"]+", "([^"]+)"\)', file.read_text("utf-8"))}
    missing = asked - tools - there - {"redis-tools"} - set(installed.split())
    assert asked and not missing, f"add to .github/programs.sh: {missing}"
    for file, name in (("ci.yml", "test"), ("ci.yml", "conformance"), ("release.yml", "package")):
        job = yaml.safe_load((ROOT / ".github/workflows" / file).read_text(encoding="utf-8"))["jobs"][name]
        steps = [step.get("run", "") for step in job["steps"]]
        assert steps.index(".github/programs.sh") < steps.index(f"make {'test' if name == 'package' else name}")


def test_names_of_images_have_no_letter_in_upper_case() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    published = re.findall(r"ghcr\.io/(\S+?)[/\"#]", text)
    assert published and all(name.endswith(",,}") for name in published), "the owner's name may have some"


def test_the_oldest_python_of_the_matrix_is_the_oldest_supported() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={jobs['test']['strategy']['matrix']['python'][0]}"


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_actions_are_pinned_by_commit_and_get_no_more_than_they_need(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    used = re.findall(r"uses: (.+)", text)
    assert used and all(re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action) for action in used), used
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        writes = {key for key, value in job.get("permissions", {}).items() if value == "write"}
        assert not writes or job["environment"], f"{name} writes without an environment that guards it"
        for step in job.get("steps", ()):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"] | {"fetch-depth": 0} == {"persist-credentials": False, "fetch-depth": 0}


def test_a_release_publishes_package_image_chart_and_site() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML reads the word `on` as a boolean
    assert jobs.keys() == {"package", "publish", "image", "chart", "site"}
    for name in jobs.keys() - {"package"}:
        assert jobs[name]["needs"] in ("package", "image"), "nothing is published before the tests have passed"
    [build] = [step["with"] for step in jobs["image"]["steps"] if "build-push-action" in step.get("uses", "")]
    assert build["platforms"] == "linux/amd64,linux/arm64" and build["sbom"] and build["provenance"] == "mode=max"
    assert (ROOT / build["file"]).exists()
    ran = [step["run"] for step in jobs["package"]["steps"] if "run" in step]
    assert {"make check", "make test", "make sbom", "make site"} <= set(ran)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    chart = (ROOT / "deploy/chart/Chart.yaml").read_text(encoding="utf-8")
    assert (
        build["tags"] == "${{ needs.package.outputs.image }}:${{ needs.package.outputs.version }}"
        and f"\nappVersion: {version}\n" in chart
    )
    assert f"\nversion: {version}\n" in chart, "the release asks for the same version"
