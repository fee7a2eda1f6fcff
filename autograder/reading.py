"""Reads a submitted notebook in any state: damaged text, old formats, wrong types."""

import codecs
import json
import stat
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 64_000_000  # outputs of 50 MB are forgiven: they are not kept
MAX_CELLS = 5_000
MAX_SOURCE = 100_000
TOO_LONG = (
    f"raise ValueError('this cell holds more than {MAX_SOURCE} characters: it was not read')"
)
"""What stands for the source of such a cell: whoever runs it is told why."""
BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class Unreadable(Exception):
    """No cell can be read from the file; the text is a sentence for the student."""


@dataclass(frozen=True)
class Submitted:
    """One cell as handed in: its nbgrader id and its own id ("" for none), and its text."""

    grade_id: str
    cell_id: str
    source: str


def read_cells(path: Path) -> list[Submitted]:
    """The cells of a notebook file, in order. Raises Unreadable with the reason."""
    kind = path.lstat().st_mode
    if not stat.S_ISREG(kind):
        what = "a link" if stat.S_ISLNK(kind) else "a folder" if stat.S_ISDIR(kind) else "no file"
        raise Unreadable(f"{path.name} is {what}: hand in the notebook itself.")
    if path.stat().st_size > MAX_BYTES:
        raise Unreadable(f"The file is larger than {MAX_BYTES // 10**6} MB: clear its outputs.")
    text = _decode(path.read_bytes())
    if not text.strip():
        raise Unreadable("The file is empty.")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"The file is not a notebook: {_why_not_json(text, error)}.") from None
    cells = _raw_cells(data)
    if len(cells) > MAX_CELLS:
        raise Unreadable(f"The notebook has {len(cells)} cells, at most {MAX_CELLS} are read.")
    return [_cell(raw) for raw in cells if isinstance(raw, dict)]


def _decode(raw: bytes) -> str:
    encoding = next((name for bom, name in BOMS.items() if raw.startswith(bom)), None)
    if encoding is None:  # JSON starts with an ASCII character: its zero byte tells UTF-16
        encoding = {b"{\0": "utf-16-le", b"\0{": "utf-16-be"}.get(raw[:2], "utf-8")
    return raw.decode(encoding, errors="replace")


def _why_not_json(text: str, error: Exception) -> str:
    if "\n<<<<<<< " in f"\n{text}":
        return "it holds the marks of a merge conflict"
    if isinstance(error, json.JSONDecodeError) and error.pos >= len(text.rstrip()) - 1:
        return "its end is missing (was the upload cut short?)"
    return "it is not valid JSON"


def _raw_cells(data: object) -> list:
    """The raw cells of format 4, or of the older formats with their worksheets."""
    if isinstance(data, dict) and isinstance(data.get("cells"), list):
        return data["cells"]
    sheets = data.get("worksheets") if isinstance(data, dict) else None
    if not isinstance(sheets, list):
        raise Unreadable("The file is not a notebook: it has no list of cells.")
    found = [
        s["cells"] for s in sheets if isinstance(s, dict) and isinstance(s.get("cells"), list)
    ]
    return [cell for cells in found for cell in cells]


def _cell(raw: dict) -> Submitted:
    metadata = raw.get("metadata")
    nbgrader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    grade_id = nbgrader.get("grade_id") if isinstance(nbgrader, dict) else None
    source = _text(raw.get("source", raw.get("input")))
    source = source if len(source) <= MAX_SOURCE else TOO_LONG
    return Submitted(_text(grade_id), _text(raw.get("id")), source)


def _text(value: object) -> str:
    """A string or list of strings as text that UTF-8 can hold; anything else is empty."""
    if isinstance(value, list):
        value = "".join(part for part in value if isinstance(part, str))
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""
