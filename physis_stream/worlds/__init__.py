"""The worlds that ship with the package, by name, and how any world is loaded."""

from __future__ import annotations

from pathlib import Path

import torch

from physis_stream.models.profile import ProfileError, WorldError, WorldProfile, read_profile
from physis_stream.models.tiny.weights import LoadedWorld, Starts, load_folder

__all__ = ["LoadedWorld", "ProfileError", "Starts", "WorldError", "load_profile", "load_world", "names", "world_folder"]

_HOME = Path(__file__).parent


def names() -> list[str]:
    """Names of the worlds that ship, sorted."""
    return sorted(path.parent.name for path in _HOME.glob("*/profile.json"))


def world_folder(name_or_path: str | Path) -> Path:
    """Return the folder of a shipped world, or the given folder. Raises WorldError for anything else, listing the
    names."""
    if isinstance(name_or_path, str) and name_or_path in names():
        return _HOME / name_or_path
    folder = Path(name_or_path)
    if folder.is_dir():
        return folder
    raise WorldError(
        f"there is no world {str(name_or_path)!r}: it is neither one that ships ({', '.join(names()) or 'none here'}) "
        "nor a folder; give one of these names, or the path of a folder with a profile.json"
    )


def load_profile(name_or_path: str | Path) -> WorldProfile:
    """Read a world's profile without its weights. Raises WorldError or ProfileError (both ValueError)."""
    return read_profile(world_folder(name_or_path))


def load_world(name_or_path: str | Path, dtype: torch.dtype = torch.float32) -> LoadedWorld:
    """Load a world that ships, or a folder; transformer and codec in `dtype`. Raises WorldError or ProfileError."""
    return load_folder(world_folder(name_or_path), dtype)
