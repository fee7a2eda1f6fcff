"""An exception from a student's code as one short record: what, where, and what it usually means.

No library traceback reaches the student: the last frame in their own cells is what they can mend.
"""

import linecache
import re
import sysconfig
import traceback
from pathlib import Path

from flashkit.exercises.model import StudentError

MAX_MESSAGE = 300
_ROOT = Path(__file__).resolve().parents[2]
_LIBRARIES = tuple(
    str(path)
    for path in (
        *(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")),
        _ROOT / "flashkit",
        _ROOT / "autograder",
        "<",
    )
)

RESTART = (
    "The kernel was defined before the interpreter was selected: import flashkit (or set "
    "TRITON_INTERPRET=1) before any cell that uses triton, then restart the kernel."
)
HINTS = (
    (r"0 active drivers", RESTART),
    (
        r"outside of the scope of a kernel",
        "A @triton.jit function was called like a plain one: launch it as kernel[grid](...). If a "
        f"kernel calls it, the two were defined in different modes. {RESTART}",
    ),
    (
        r"arange's range must be a power of 2",
        "tl.arange takes powers of two only: make the tile a power of two and mask the rest.",
    ),
    (
        r"arange's arguments must be of type tl.constexpr",
        "The size of a tile must be known when the kernel is compiled: declare that parameter as "
        "NAME: tl.constexpr.",
    ),
    (
        r"block_ptr|tensor descriptor API",
        "Block pointers are gone from Triton: use plain pointers, base + offs * stride.",
    ),
    (
        r"incompatible dimensions|broadcast",
        "Two tiles do not fit together: a row vector needs [None, :], a column vector [:, None].",
    ),
    (
        r"must be same dtype|must have the same dtype",
        "Both operands of tl.dot need one dtype: cast the weights with p.to(v.dtype).",
    ),
    (
        r"equal reduction dimensions",
        "tl.dot multiplies (M, K) by (K, N): does one operand need tl.trans?",
    ),
    (
        r"M >= 16|N >= 16|K >= 16|at least 16",
        "tl.dot takes tiles of at least 16 in every dimension: pad them.",
    ),
    (
        r"only 0-dimensional arrays|only length-1 arrays|only integer scalar arrays",
        "A whole tile stands where one number is needed, as in a loop bound or a call of math.",
    ),
    (
        r"cpu tensor|Pointer argument",
        "The kernel runs on the GPU but a tensor is on the CPU: make new tensors with "
        "torch.empty_like(q) or device=q.device.",
    ),
    (
        r"illegal memory access|misaligned address",
        "A load or store goes past the end of a tensor: check its mask and its strides.",
    ),
    (
        r"Unsupported ptr type",
        "tl.load and tl.store take a tile of pointers, x_ptr + offsets, not a tile of numbers.",
    ),
    (
        r"Cannot access global variable",
        "A kernel cannot read a global: hand the number over as a tl.constexpr parameter.",
    ),
    (r"get source code|defined in a Python file", "A @triton.jit function must stand in a cell."),
    (
        r"triton.language' has no attribute",
        "There is no such function in triton.language: see the list in the lesson.",
    ),
    (
        r"NoneType",
        "Something here is None: tl.store gives nothing back, nor does a function without return.",
    ),
    (
        r"positional argument|keyword argument|multiple values",
        "The parameters do not fit the call: compare them with the signature.",
    ),
    (
        r"^AssertionError: $",
        "Triton refused this line without a word: is something in it None? tl.store gives "
        "nothing back.",
    ),
)


def explain(error: BaseException, cells: dict[str, str] | None = None) -> StudentError:
    """The record of an exception; cells maps the files of student cells to their names.

    Without cells, as in a notebook, every file outside of the libraries counts as a cell.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        error = error.__cause__
        frames += traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_own(frame.filename, cells)]
    kind, message = type(error).__name__, _message(error)
    return StudentError(
        kind, message, hint=_hint(f"{kind}: {message}"), **_place(own, error, cells)
    )


def is_own(filename: str, cells: dict[str, str] | None) -> bool:
    """Whether a file is one of the student's cells; without cells, whether it is no library's."""
    return filename in cells if cells is not None else not filename.startswith(_LIBRARIES)


def _place(own, error: BaseException, cells: dict[str, str] | None) -> dict:
    """Cell, line number and text of the last line that is the student's."""
    if isinstance(error, SyntaxError) and error.filename and is_own(error.filename, cells):
        filename, line = error.filename, error.lineno
    elif own:
        filename, line = own[-1].filename, own[-1].lineno
    else:
        return {}
    line = _compiled_line(error, filename) or line
    code = linecache.getline(filename, line or 0).strip()[:120]
    return {"cell": (cells or {}).get(filename, ""), "line": line, "code": code}


def _compiled_line(error: BaseException, filename: str) -> int | None:
    """The line of the kernel that Triton could not compile; its frames end at the launch."""
    source, node = getattr(error, "src", None), getattr(error, "node", None)
    if not isinstance(source, str) or not hasattr(node, "lineno"):
        return None
    code = (source.splitlines()[node.lineno - 1 : node.lineno] or [""])[0].strip()
    lines = [text.strip() for text in linecache.getlines(filename)]
    return lines.index(code) + 1 if code and code in lines else None


def _message(error: BaseException) -> str:
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # a student's own exception may fail even here
        return ""
    # Triton's CompilationError shows the source first and says what is wrong on its last line.
    return (lines[-1 if "CompilationError" in type(error).__name__ else 0] if lines else "")[
        :MAX_MESSAGE
    ]


def hint_for(error: StudentError) -> str:
    """Our hint on an exception that is known by its record, or ""."""
    return _hint(f"{error.type}: {error.message}")


def _hint(text: str) -> str:
    return next((hint for pattern, hint in HINTS if re.search(pattern, text)), "")
