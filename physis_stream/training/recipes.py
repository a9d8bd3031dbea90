"""Which recipe belongs to an environment or a world: hand-written ones first, the generic one for anything else."""

from __future__ import annotations

from physis_stream.training.recipe import Recipe, gymnasium_recipe


def recipe_for(env_id: str, *, size: int = 96) -> Recipe:
    """Return the recipe of a Gymnasium environment id, or of a shipped world's name. Raises ValueError with what to
    do."""
    if env_id in ("pusht", "gym_pusht/PushT-v0"):
        from physis_stream.training.pusht import RECIPE

        if size != RECIPE.size:
            raise ValueError(f"pusht is drawn at {RECIPE.size}x{RECIPE.size}; leave the size out or give {RECIPE.size}")
        return RECIPE
    import gymnasium

    if size % 24:
        raise ValueError(f"size must be a multiple of 24 (latents of size/8 in patches of 3), got {size}")
    try:
        return gymnasium_recipe(env_id, size=size)
    except gymnasium.error.Error as wrong:
        raise ValueError(f"there is no environment {env_id!r}: {wrong}; give a registered Gymnasium id") from wrong
