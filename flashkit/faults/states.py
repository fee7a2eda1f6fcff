"""One step of the recurrence, and one merge of two parts, with exactly one thing wrong."""

import torch
from torch import Tensor

from flashkit.faults.recipe import INF, Recipe
from flashkit.faults.recipes import RECIPES


def step(recipe: Recipe, m, l, acc, scores, values, raw=None) -> tuple[Tensor, Tensor, Tensor]:
    """One tile: m, l (...), acc (..., D), scores (..., N), values (..., N, D).

    raw are the scores before the mask, by default the same.
    """
    if recipe.own_softmax:
        return _own_softmax(m, l, acc, scores, values)
    raw = scores if raw is None else raw
    m_new = recipe.maximum(m, recipe.top(scores, raw))
    safe = torch.where(m_new == -INF, 0.0, m_new) if recipe.guard else m_new
    alpha = recipe.alpha(m, safe)
    p, raw_p = (recipe.weights(x, safe) for x in (scores, raw))
    factor = recipe.p_factor(alpha)
    l = recipe.l_alpha(alpha) * l + factor * recipe.l_of(p, raw_p)
    acc = recipe.acc_alpha(alpha)[..., None] * acc + factor[..., None] * recipe.dot_p(p, values)
    return recipe.kept(m, m_new), l, recipe.after(l, acc)


def _own_softmax(m, l, acc, scores, values):
    """The bug of a softmax per tile: l counts the tiles, so that acc / l is their average."""
    seen = scores.amax(-1) > -INF
    share = torch.softmax(scores, -1).nan_to_num(0.0) @ values
    return m, l + seen.to(l.dtype), acc + torch.where(seen[..., None], share, 0.0)


def faulty_update(fault, m, l, a, scores, values, variant=0):
    """One step of the recurrence with one bug: the shapes of `flashkit.online.update`.

    ValueError for a bug without a recipe.
    """
    recipe = known(fault)[variant]
    if fault == "max_starts_at_zero":
        m = m.clamp(min=0)
    return step(recipe, m, l, a, scores, values)


def faulty_merge(fault, a, b, variant=0):
    """Two partial results (m, l, acc) merged with one bug, as another such triple.

    ValueError for a bug that is neither in `RECIPES` nor one of merges.
    """
    if fault in MERGES:
        return MERGES[fault][variant](a, b)
    recipe = known(fault)[variant]
    m = torch.maximum(a[0], b[0])
    m = {"no_max": torch.zeros_like(m), "max_starts_at_zero": m.clamp(min=0)}.get(fault, m)
    safe = torch.where(m == -INF, 0.0, m) if recipe.guard else m
    l, acc = torch.zeros_like(a[1]), torch.zeros_like(a[2])
    for part_m, part_l, part_acc in (a, b):
        weight = torch.exp(part_m) if fault == "no_max" else recipe.alpha(part_m, safe)
        l = l + recipe.l_alpha(weight) * part_l
        acc = acc + recipe.acc_alpha(weight)[..., None] * part_acc
    return m, l, acc


def known(fault) -> tuple[Recipe, ...]:
    """The recipes of a bug. ValueError for one without a recipe."""
    if fault not in RECIPES:
        raise ValueError(f"fault must be one of {', '.join(RECIPES)}, got {fault!r}")
    return RECIPES[fault]


def _weighted(a, b, m, weight_a, weight_b):
    """The merge at reference m with given weights."""
    l = weight_a * a[1] + weight_b * b[1]
    return m, l, weight_a[..., None] * a[2] + weight_b[..., None] * b[2]


def _right_weights(a, b):
    m = torch.maximum(a[0], b[0])
    safe = torch.where(m == -INF, 0.0, m)
    return m, torch.exp(a[0] - safe), torch.exp(b[0] - safe)


def _one_side(which: int):
    def merge(a, b):
        m, *weights = _right_weights(a, b)
        weights[which] = torch.ones_like(m)
        return _weighted(a, b, m, *weights)

    return merge


def _one_lost(which: int):
    return lambda a, b: (b, a)[which]


def _reference_of(which: int):
    """The maximum of one part stands for both."""

    def merge(a, b):
        m = (a, b)[which][0]
        safe = torch.where(m == -INF, 0.0, m)
        return _weighted(a, b, m, torch.exp(a[0] - safe), torch.exp(b[0] - safe))

    return merge


MERGES = {
    "merge_one_side": (_one_side(0), _one_side(1)),
    "part_lost": (_one_lost(0), _one_lost(1)),
    "max_of_tile_alone": (_reference_of(1),),
    "max_frozen": (_reference_of(0),),
}
"""Bugs that only a merge of two parts can have, or has in another way."""
