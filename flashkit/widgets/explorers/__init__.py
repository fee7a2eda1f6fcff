"""The explorers: each module computes the steps of one (pure) and wires them to controls."""

from flashkit.widgets.explorers.attention import attention_explorer, attention_steps
from flashkit.widgets.explorers.tile import tile_explorer, tile_steps
from flashkit.widgets.explorers.tile_map import tile_map_explorer, tile_map_steps

__all__ = [
    "attention_explorer",
    "attention_steps",
    "tile_explorer",
    "tile_map_explorer",
    "tile_map_steps",
    "tile_steps",
]
