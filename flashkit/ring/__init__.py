"""Ring attention: a sequence longer than one GPU holds, on any number of them."""

from flashkit.ring.attention import ring_attention, shard, unshard
from flashkit.ring.placement import PLACEMENTS, Span, Visit, spans, visits

__all__ = [
    "PLACEMENTS",
    "Span",
    "Visit",
    "ring_attention",
    "shard",
    "spans",
    "unshard",
    "visits",
]
