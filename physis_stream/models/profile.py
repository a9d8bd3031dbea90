"""A world's profile: everything the engine must know to serve a checkpoint, as one JSON object beside the weights.

Weights alone do not say under which rule they were trained, at which noise levels, or what an action means. A profile
does; it is read and checked whole before a single weight is. A field that is missing, unknown or out of range is
refused by name.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from physis_stream.core.context_rule import ContextRule, Discipline
from physis_stream.models.noise_schedule import Renoise


class WorldError(ValueError):
    """A world cannot be loaded: says what was wrong, what was expected and what to do."""


class ProfileError(WorldError):
    """A profile is incomplete or contradicts itself."""


@dataclass(frozen=True, slots=True)
class ActionProfile:
    """What a client sends per frame: `dim` numbers between `low` and `high`. `default` goes with opening frames, and
    holds until the first action where a start brings no resting action of its own. `combine` says what becomes of
    several actions that arrive within one chunk ("latest": the newest wins and stays in force)."""

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    default: tuple[float, ...]
    combine: str

    @property
    def dim(self) -> int:
        """How many numbers an action has."""
        return len(self.names)


@dataclass(frozen=True, slots=True)
class ReadoutProfile:
    """Names and units of the numbers that the readout finds in a frame, in order; `angles` index those in radians."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    angles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RuleChoice:
    """A discipline that the weights were trained for."""

    discipline: Discipline
    commit: bool


@dataclass(frozen=True, slots=True)
class WorldProfile:
    """See the module. `latent` is (C, h, w) of one frame; `levels` are the noise levels of the S steps, first 1.0;
    clean rows (opening frames and commit rows) pass their latents without noise and are told `commit_level`. `rules`
    lists what may be served, the default first. `window` counts earlier frames in view, `sink` frames that are never
    evicted. `title` and `description` are for people; a profile may leave them out."""

    family: str
    name: str
    rules: tuple[RuleChoice, ...]
    num_steps: int
    levels: tuple[float, ...]
    commit_level: float
    renoise: Renoise
    window: int
    sink: int
    chunk_frames: int
    fps: float
    height: int
    width: int
    latent: tuple[int, int, int]
    tokens_per_frame: int
    action: ActionProfile
    readout: ReadoutProfile
    title: str = ""
    description: str = ""

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ProfileError(f"profile of {self.name!r}: " + "; ".join(problems))

    @property
    def discipline(self) -> Discipline:
        """The default discipline."""
        return self.rules[0].discipline

    @property
    def commit(self) -> bool:
        """Whether the default rule writes clean KV in a row of its own."""
        return self.rules[0].commit

    def rule(self, discipline: str | None = None, commit: bool | None = None) -> ContextRule:
        """Return the context rule, by default the profile's first; raises ProfileError for one it was not trained
        for."""
        for choice in self.rules:
            if discipline in (None, choice.discipline) and commit in (None, choice.commit):
                return ContextRule(choice.discipline, self.num_steps, self.window, choice.commit)
        offered = ", ".join(f"{c.discipline} (commit={str(c.commit).lower()})" for c in self.rules)
        raise ProfileError(
            f"{self.name} was not trained for discipline {discipline!r} with commit={commit}; choose one of: {offered}"
        )

    def _problems(self) -> list[str]:
        found = []
        if not self.rules:
            found.append("rules is empty; name at least one discipline")
        if len(self.levels) != self.num_steps:
            found.append(f"levels has {len(self.levels)} entries, num_steps is {self.num_steps}")
        if any(not 0 < level <= 1 for level in self.levels) or list(self.levels) != sorted(self.levels, reverse=True):
            found.append(f"levels must fall and lie in (0, 1], got {list(self.levels)}")
        if not 0 <= self.commit_level <= 1:
            found.append(f"commit_level must lie in 0..1, got {self.commit_level}")
        for name in ("window", "chunk_frames", "fps", "height", "width", "tokens_per_frame"):
            if getattr(self, name) <= 0:
                found.append(f"{name} must be positive, got {getattr(self, name)}")
        action = self.action
        if not len(action.low) == len(action.high) == len(action.default) == action.dim:
            found.append("action: names, low, high and default differ in length")
        elif any(not a <= d <= b or a == b for a, d, b in zip(action.low, action.default, action.high, strict=True)):
            found.append("action: low <= default <= high and low < high must hold for every number")
        if len(self.readout.names) != len(self.readout.units):
            found.append("readout: names and units differ in length")
        return found


_CASTS: dict[str, Any] = {
    "RuleChoice": RuleChoice,
    "ActionProfile": ActionProfile,
    "ReadoutProfile": ReadoutProfile,
}


def _build(kind: type, content: Any, where: str) -> Any:
    """Make a frozen dataclass of a JSON object, refusing unknown and missing fields by name. A field with a default may
    be left out."""
    if not isinstance(content, dict):
        raise ProfileError(f"{where} must be a JSON object, got {type(content).__name__}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    missing = [name for name, field in fields.items() if name not in content and field.default is dataclasses.MISSING]
    unknown = [name for name in content if name not in fields]
    if missing or unknown:
        parts = [f"lacks {', '.join(missing)}"] if missing else []
        parts += [f"has unknown fields {', '.join(unknown)}"] if unknown else []
        raise ProfileError(f"{where} {' and '.join(parts)}; expected exactly: {', '.join(fields)}")
    given = {name: field for name, field in fields.items() if name in content}
    return kind(**{name: _convert(str(field.type), content[name], f"{where}.{name}") for name, field in given.items()})


def _convert(annotation: str, value: Any, where: str) -> Any:
    if annotation in _CASTS:
        return _build(_CASTS[annotation], value, where)
    if annotation in ("Discipline", "Renoise"):
        allowed = [str(item) for item in (Discipline if annotation == "Discipline" else Renoise)]
        if value not in allowed:
            raise ProfileError(f"{where} is {value!r}; expected one of {', '.join(allowed)}")
        return (Discipline if annotation == "Discipline" else Renoise)(value)
    if annotation.startswith("tuple["):
        inner = annotation[6:-1].split(",")[0].strip()
        if not isinstance(value, list):
            raise ProfileError(f"{where} must be a list, got {type(value).__name__}")
        count = annotation.count(inner) if "..." not in annotation else len(value)
        if len(value) != count:
            raise ProfileError(f"{where} must have {count} entries, got {len(value)}")
        return tuple(_convert(inner, item, f"{where}[{i}]") for i, item in enumerate(value))
    wanted: tuple[type, ...] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}[annotation]
    if not isinstance(value, wanted) or (isinstance(value, bool) and annotation != "bool"):
        raise ProfileError(f"{where} must be {annotation}, got {value!r}")
    return float(str(value)) if annotation == "float" else value


def parse_profile(text: str, where: str = "profile.json") -> WorldProfile:
    """Read a profile from JSON text. Raises ProfileError naming every missing or unknown field."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as wrong:
        raise ProfileError(f"{where} is not JSON: {wrong}") from wrong
    profile: WorldProfile = _build(WorldProfile, content, where)
    return profile


def read_profile(folder: Path) -> WorldProfile:
    """Read `folder/profile.json`. Raises WorldError if there is none, ProfileError if it is wrong."""
    path = folder / "profile.json"
    if not path.is_file():
        raise WorldError(
            f"{folder} has no profile.json; a checkpoint without a profile cannot be served: write one with the fields "
            + ", ".join(field.name for field in dataclasses.fields(WorldProfile))
        )
    return parse_profile(path.read_text(encoding="utf-8"), str(path))


def profile_json(profile: WorldProfile) -> str:
    """Return the profile as indented JSON text that `parse_profile` reads back equal."""
    return json.dumps(dataclasses.asdict(profile), indent=2, ensure_ascii=False) + "\n"
