"""Pure functions from data to static plotly figures, readable in light and dark themes."""

from flashkit.widgets.figures.costs import (
    peak_memory,
    roofline,
    score_memory,
    split_programs,
    traffic,
)
from flashkit.widgets.figures.maps import tile_map
from flashkit.widgets.figures.recurrence import merge_tree

__all__ = [
    "merge_tree",
    "peak_memory",
    "roofline",
    "score_memory",
    "split_programs",
    "tile_map",
    "traffic",
]
