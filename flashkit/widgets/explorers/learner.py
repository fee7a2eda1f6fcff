"""What an explorer says when the learner's own function does not answer: a sentence."""

from flashkit.exercises.errors import explain


def trouble(name: str, error: Exception) -> str:
    """Why the learner's function `name` gave nothing, in a sentence or two, without a traceback.

    >>> trouble("tile_bounds", NotImplementedError())
    'Your tile_bounds is not written yet.'
    """
    found = explain(error)
    if found.type == "NotImplementedError" and not found.message:
        return f"Your {name} is not written yet."
    place = f" in line {found.line}, {found.code}" if found.code else ""
    message = f": {found.message}" if found.message else ""
    said = f"Your {name} raised {found.type}{place}{message}".rstrip(".")
    return f"{said}. {found.hint}".strip()


def listed(numbers) -> str:
    """Tile numbers as words: "tile 3", "tiles 0 and 2", "tiles 0 to 4"; rising, at least one."""
    numbers = list(numbers)
    if len(numbers) == 1:
        return f"tile {numbers[0]}"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"tiles {numbers[0]} to {numbers[-1]}"
    return f"tiles {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
