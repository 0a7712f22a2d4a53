"""Parts of the room: files that the tests build a machine of."""

from pathlib import Path


def make(place: Path, *names: str, text: str = "", mode: int = 0o644) -> None:
    """Make files, and folders where a name ends in a slash, with all folders above them."""
    for name in names:
        path = place / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_text(text, encoding="utf-8")
            path.chmod(mode)
