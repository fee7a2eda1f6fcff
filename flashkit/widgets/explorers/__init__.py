"""The explorers: each module computes the steps of one (pure) and wires them to controls."""

from flashkit.widgets.explorers.attention import attention_explorer, attention_steps
from flashkit.widgets.explorers.backward_map import backward_map_explorer, backward_map_steps
from flashkit.widgets.explorers.gradient import gradient_explorer, gradient_steps
from flashkit.widgets.explorers.kernel import kernel_explorer, kernel_steps
from flashkit.widgets.explorers.merging import merge_explorer, merge_steps
from flashkit.widgets.explorers.score_matrix import score_matrix_explorer, score_matrix_steps
from flashkit.widgets.explorers.split import split_explorer, split_steps
from flashkit.widgets.explorers.tile import tile_explorer, tile_steps
from flashkit.widgets.explorers.tile_map import tile_map_explorer, tile_map_steps

__all__ = [
    "attention_explorer",
    "attention_steps",
    "backward_map_explorer",
    "backward_map_steps",
    "gradient_explorer",
    "gradient_steps",
    "kernel_explorer",
    "kernel_steps",
    "merge_explorer",
    "merge_steps",
    "score_matrix_explorer",
    "score_matrix_steps",
    "split_explorer",
    "split_steps",
    "tile_explorer",
    "tile_map_explorer",
    "tile_map_steps",
    "tile_steps",
]
