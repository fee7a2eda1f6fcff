"""What lies in a submission's folder: can it be graded, has it changed, who should look at it."""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

SHOWN = 3  # names of files that a reason lists


def refusal(folder: Path) -> str:
    """Why no notebook of the submission can be graded; "" if one can."""
    if re.search(r"[*?\[\]{}]", f"{folder.parent.name}{folder.name}"):
        return "the folder's name holds one of * ? [ ] { }, which nbgrader takes for a pattern"
    if folder.is_symlink() or folder.parent.is_symlink():
        return "the submission is a link to another folder"
    if odd := next(_odd(folder), None):
        return f"{odd.relative_to(folder)} is a link or no ordinary file: hand in the file itself"
    names = [path.name for path in notebooks(folder)]
    if not names:
        return f"there is no notebook in the submission{_instead(folder)}"
    if len(names) > 1 and f"{folder.name}.ipynb" not in names:
        return f"{len(names)} notebooks, none of them called {folder.name}.ipynb"
    return ""


def notebooks(folder: Path) -> list[Path]:
    """The notebook files of a submission, by name."""
    return sorted(path for path in folder.glob("*.ipynb") if path.is_file())


def _odd(folder: Path) -> Iterator[Path]:
    """Links, pipes and the like: nbgrader would follow them, or wait for them."""
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                yield path


def _instead(folder: Path) -> str:
    """What there is in place of a notebook."""
    names = sorted(f"{p.name}/" if p.is_dir() else p.name for p in folder.iterdir())
    more = ", ..." if len(names) > SHOWN else ""
    return f", only {', '.join(names[:SHOWN])}{more}" if names else ": the folder is empty"


def fingerprint(folder: Path, release: Path) -> str:
    """A hash of the submitted notebooks, whatever they are called, and of what was released."""
    digest = hashlib.sha256(release.read_bytes())
    for content in sorted(hashlib.sha256(p.read_bytes()).digest() for p in notebooks(folder)):
        digest.update(content)
    return digest.hexdigest()
