"""The hook of mkdocs: pages of the site that are not files of docs/, and links between all of them.

In the repository a document links to files by their paths. On the site, documents of the root (`SECURITY.md`), of
`examples/` and of `bench/` are pages as well, and a file that no page holds (an example's configuration) is an asset.
For programs, each page is also Markdown beside its HTML, and `llms.txt` lists these (https://llmstxt.org).
"""

import posixpath
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from jinja2 import Environment
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tests.tools.obtain import npm_packages
from tests.tools.site_clients import client_pages
from tests.tools.site_reference import command_line, python_interface, rest_interface

ROOT: Final = Path(__file__).parents[2]
_PAGES: Final = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "bench/README.md": "benchmarks.md",
    "examples/README.md": "examples.md",
}
"""Documents outside of docs/, and their places on the site."""
_SOURCES: Final = {place: path for path, place in _PAGES.items()}
_LINK: Final = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<path>(?!https?:)[^)#:\s]+)(?P<anchor>#[^)]*)?\)")
_DRAWING: Final = "assets/mermaid.min.js"
_FENCE: Final = re.compile(r"^(```.*?^```)", re.DOTALL | re.MULTILINE)
_COMMENT: Final = re.compile(r"^<!--.*?-->\n+", re.DOTALL | re.MULTILINE)
_TARGET: Final = re.compile(r"(\[[^\]]*\])\((?!https?:)([^)#:\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, and the files that any page links to."""
    for path, place in _PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / path).read_text(encoding="utf-8")))
    clients = list(client_pages())
    made = {path: text for path, _, text in clients}
    made |= {"cli.md": command_line(), "rest.md": rest_interface(), "python.md": python_interface()}
    made |= {"adr/index.md": _decisions()}
    _list(config, "Clients", [{title: path} for path, title, _ in clients])
    _list(config, "Inside", [f"adr/{file.name}" for file in _decision_files()])
    # Material would have a reader's browser load the library from another host.
    drawing = npm_packages({"mermaid": "12.3.0"}) / "node_modules/mermaid/dist/mermaid.min.js"
    files.append(File.generated(config, _DRAWING, abs_src_path=str(drawing)))
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    for source in (*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / path for path in _PAGES)):
        for found in _LINK.finditer(source.read_text(encoding="utf-8")):
            path = _in_repository(source, found["path"])
            if _is_asset(path) and files.get_file_from_path(path + ".txt") is None:
                text = (ROOT / path).read_text(encoding="utf-8")
                files.append(File.generated(config, path + ".txt", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The text with the links of the site. Its search ranks decisions last: they say why, not how."""
    if page.file.src_uri.startswith("adr/"):
        page.meta["search"] = {"boost": 1e-5}  # a word in a title counts a thousand times as much as one in a text
    if page.file.generated_by and page.file.src_uri not in _SOURCES:
        return markdown
    source = ROOT / _SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    here = posixpath.dirname(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        there = _on_site(_in_repository(source, found["path"]))
        if not there:
            return found["text"]
        return f"[{found['text']}]({posixpath.relpath(there, here or '.')}{found['anchor'] or ''})"

    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in _FENCE.split(markdown))


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with the library that draws its diagrams, if it has any."""
    if 'class="mermaid"' not in html:
        return html
    return f'{html}<script src="{posixpath.relpath(_DRAWING, posixpath.dirname(page.file.dest_uri) or ".")}"></script>'


def on_env(env: Environment, *, config: MkDocsConfig, files: Files) -> Environment:
    """Write the pages as Markdown, and `llms.txt`. By now all pages have their titles."""
    site = Path(config.site_dir)
    for file in files.documentation_pages():
        path = site / _as_markdown(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_for_programs(file, files), encoding="utf-8")
    lines, decisions = [f"# {config.site_name}", "", f"> {config.site_description}"], list[str]()
    for section, pages in ((name, pages) for one in config.nav or [] for name, pages in one.items()):
        lines += ["", f"## {section}", ""]
        for page in pages if isinstance(pages, list) else [pages]:
            place = page if isinstance(page, str) else next(iter(page.values()))
            (decisions if place.startswith("adr/") else lines).append(_listed(files.src_uris[place]))
    # Readers with little room leave out a section of that name.
    (site / "llms.txt").write_text("\n".join([*lines, "", "## Optional", "", *decisions, ""]), encoding="utf-8")
    return env


def _as_markdown(file: File) -> str:
    """The place of a page's Markdown; of another file, its own place."""
    return str(PurePosixPath(file.dest_uri).with_suffix(".md")) if file.is_documentation_page() else file.dest_uri


def _for_programs(file: File, files: Files) -> str:
    """The text of a page without the comments for tests. Its links lead to other pages as Markdown."""
    assert file.page is not None and file.page.markdown is not None
    here = posixpath.dirname(_as_markdown(file))

    def link(found: re.Match[str]) -> str:
        there = files.get_file_from_path(posixpath.normpath(posixpath.join(posixpath.dirname(file.src_uri), found[2])))
        return (
            f"{found[1]}({posixpath.relpath(_as_markdown(there), here or '.')}{found[3] or ''})" if there else found[0]
        )

    text = _COMMENT.sub("", file.page.markdown)
    return "".join(part if part.startswith("```") else _TARGET.sub(link, part) for part in _FENCE.split(text)) + "\n"


def _listed(file: File) -> str:
    """The line of a page in `llms.txt`: its title, and the first sentence below it. Titles of decisions are enough."""
    assert file.page is not None and file.page.markdown is not None
    below = " ".join(file.page.markdown.partition("\n\n")[2].partition("\n\n")[0].split())
    is_text = re.match(r"[A-Z`](?!``)", below) and not file.src_uri.startswith("adr/")
    about = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.split(r"(?<=\.)\s", below)[0].rstrip(":")) if is_text else ""
    return f"- [{file.page.title}]({_as_markdown(file)}){about and f': {about}'}"


def _in_repository(source: Path, link: str) -> str:
    """The path from the root of what a document links to."""
    return posixpath.normpath(posixpath.join(source.parent.relative_to(ROOT).as_posix(), link))


def _is_asset(path: str) -> bool:
    return path not in _PAGES and not path.startswith("docs/") and (ROOT / path).is_file() and path != "README.md"


def _on_site(path: str) -> str:
    """The place on the site; empty for a folder, which the site does not show."""
    if path == "README.md":
        return "index.md"
    if path == "docs/adr":
        return "adr/index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in _PAGES:
        return _PAGES[path]
    return path + ".txt" if _is_asset(path) else ""


def _decisions() -> str:
    """The list of the decisions, by their titles."""
    titles = [(file.name, file.read_text("utf-8").partition("\n")[0].removeprefix("# ")) for file in _decision_files()]
    return "\n".join(["# Decisions", "", *(f"- [{title}]({name})" for name, title in titles)])


def _decision_files() -> list[Path]:
    return sorted((ROOT / "docs/adr").glob("*.md"))


def _list(config: MkDocsConfig, section: str, pages: Sequence[str | dict[str, str]]) -> None:
    """Put made pages into a section of the navigation, which mkdocs.yml has."""
    below = next(one[section] for one in config.nav or [] if section in one)
    below += [page for page in pages if page not in below]
