"""Pure functions from data to static plotly figures, readable in light and dark themes."""

from flashkit.widgets.figures.bench import backward_speed, decode_speed, forward_speed, ladder
from flashkit.widgets.figures.beyond import ring_work, timeline
from flashkit.widgets.figures.costs import peak_memory, roofline, traffic
from flashkit.widgets.figures.maps import tile_map

__all__ = [
    "backward_speed",
    "decode_speed",
    "forward_speed",
    "ladder",
    "peak_memory",
    "ring_work",
    "roofline",
    "tile_map",
    "timeline",
    "traffic",
]
