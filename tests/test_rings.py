"""Each test is in one ring, and every part of the product touches some suite of the second."""

import subprocess
from pathlib import Path

import pytest

from tests.rings import ROOT, SECOND_RING, changed_since, is_of_the_second_ring, same_model, same_program, touched


def test_the_table_names_what_exists() -> None:
    for suite, by in SECOND_RING.items():
        path, _, test = suite.partition("[")[0].partition("::")
        found = list(ROOT.glob(f"{path}*"))
        assert found and (not test or f"def {test}" in found[0].read_text(encoding="utf-8")), suite
        assert all((ROOT / path).exists() for path in by), suite


def test_every_room_of_the_product_touches_a_suite() -> None:
    rooms = {str(path.parent.relative_to(ROOT)) for path in (ROOT / "gateway").glob("*/__init__.py")}
    untouched = {room for room in rooms if not touched([f"{room}/any.py"])}
    assert untouched <= {"gateway/integrations", "gateway/observability", "gateway/protocol", "gateway/serving"}, (
        "the first ring has their tests"
    )


@pytest.mark.parametrize(
    ("changed", "suites"),
    [
        ("docs/eras.md", {"tests/test_site.py", "tests/test_documents.py::test_a_command_does_what_the_document_says"}),
        ("tests/hosts/test_hosts.py", {"tests/hosts"}),
        ("CHANGELOG.md", set()),
        ("tests/support/waiting.py", set(SECOND_RING) - {"tests/proof/test_model.py"}),
        (
            "tests/support/authorization_server.mjs",
            {"tests/clients/test_oauth.py", "tests/cluster/test_person_tokens.py"},
        ),
        ("tests/support/sentinels.py", {"tests/cluster/test_failovers.py", "tests/store/test_sentinel.py"}),
    ],
)
def test_a_change_touches_the_suites_of_its_paths(changed: str, suites: set[str]) -> None:
    assert set(touched([changed])) == suites


def test_words_alone_touch_nothing_and_each_statement_does() -> None:
    module = '"""Add."""\n\ndef add(a: int) -> int:\n    """Add one."""\n    return a + 1\n'
    assert same_program(module, module.replace("one.", "one to `a`.").replace("+ 1", "+ 1  # the next"))
    assert not same_program(module, module.replace("+ 1", "+ 2"))
    assert not same_program(module, module.replace("a + 1", '"a"'))
    assert not same_program(module, module.replace("int:", "str:"))
    tool = module.replace("def add", "@tool\ndef add")
    assert same_program(tool, tool.replace("Add.", "Sum.")) and not same_program(tool, tool.replace("one.", "1."))
    assert same_model("/* a\n */ byte a;", "/* b */ byte a;") and not same_model("byte a; /* b */", "byte b; /* b */")
    assert not same_program("a = (", "a = ()") and not same_program(module, "\0")


def test_a_commit_changes_what_it_adds_moves_and_rewrites_but_not_what_it_only_says_in_other_words(
    tmp_path: Path,
) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        ran = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return ran.stdout.strip()

    def commit(**texts: str) -> str:
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        git("add", "--all")
        git("commit", "--message", "next")
        return git("rev-parse", "HEAD")

    git("init")
    base = commit(words="a = 1", code="a = 1\nb = 2", mode="a = 1", broken="a = (", moved="a = 1", gone="a = 1")
    (tmp_path / "gone.py").unlink()
    (tmp_path / "mode.py").chmod(0o755)
    git("mv", "moved.py", "there.py")
    commit(words="a = 1  # one", mode="a = 1  # one", code="a = 1\nb = 3", broken="a = ()", new="a = 1")
    files = {"code.py", "mode.py", "broken.py", "moved.py", "there.py", "gone.py", "new.py"}
    assert set(changed_since(base, tmp_path)) == files


def test_the_first_ring_proves_each_feature_with_real_parts() -> None:
    """Real processes, Redis, a load balancer, and SDK clients of both eras are not left to the night."""
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    first = {file for file in files if not is_of_the_second_ring(file)}
    assert {
        "tests/clients/test_sdk.py",
        "tests/cluster/test_replicas.py",
        "tests/e2e/test_processes.py",
        "tests/store/test_backends.py",
    } <= first
