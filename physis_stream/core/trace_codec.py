"""Commands, plans, results and facts as plain data and back: what a trace file holds. Strict in both directions.

A dataclass becomes a dict of its fields with its name under "type", a tuple a list, an enum its value; numbers,
strings, booleans and None stay. Decoding follows the declared field types and refuses what does not fit, so a trace
cannot smuggle anything in. It knows no files; `json.dumps` of the result is lossless (floats round-trip exactly).
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from physis_stream.core import commands, events, plan
from physis_stream.core.context_rule import ContextRule
from physis_stream.core.cost_model import CostPrior
from physis_stream.core.limits import Limits
from physis_stream.core.spec import ActionSpec, WorldSpec

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]

_TYPES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *typing.get_args(commands.Command),
        *typing.get_args(events.Event),
        *typing.get_args(plan.StateOp),
        plan.Control,
        plan.ContextChunk,
        plan.Row,
        plan.Decode,
        plan.Plan,
        plan.Result,
        ContextRule,
        ActionSpec,
        WorldSpec,
        Limits,
        CostPrior,
    )
}


def encode(value: Any) -> Plain:
    """As plain data; raises TypeError for what traces do not hold."""
    if isinstance(value, Enum):
        return encode(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if is_dataclass(value) and type(value).__name__ in _TYPES:
        plain: dict[str, Plain] = {"type": type(value).__name__}
        for field in fields(value):
            plain[field.name] = encode(getattr(value, field.name))
        return plain
    raise TypeError(f"a trace does not hold {type(value).__name__}")


def decode(plain: Any) -> Any:
    """The dataclass that `encode` made this from; raises ValueError for anything else."""
    if not isinstance(plain, Mapping):
        raise ValueError(f"a trace object is a dict with a type, got {type(plain).__name__}")
    kind = _TYPES.get(str(plain.get("type")))
    if kind is None:
        raise ValueError(f"a trace does not hold objects of type {plain.get('type')!r}")
    hints = _hints(kind.__name__)
    if plain.keys() - {"type"} != hints.keys():
        raise ValueError(f"{kind.__name__} has fields {sorted(hints)}, got {sorted(plain.keys() - {'type'})}")
    return kind(**{name: _fit(plain[name], hint, f"{kind.__name__}.{name}") for name, hint in hints.items()})


@functools.cache
def _hints(name: str) -> dict[str, Any]:
    kind = _TYPES[name]
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _fit(plain: Any, hint: Any, where: str) -> Any:
    """Decode a value as its declared type says."""
    hint = _bare(hint)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _fit_one_of(plain, [_bare(option) for option in typing.get_args(hint)], where)
    if origin is tuple:
        return _fit_tuple(plain, typing.get_args(hint), where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(plain)
    if is_dataclass(hint):
        value = decode(plain)
        if not isinstance(value, typing.cast("type[Any]", hint)):
            raise ValueError(f"{where} is a {type(value).__name__}")
        return value
    if hint is float and type(plain) is int:
        return float(plain)
    if type(plain) is not hint:
        raise ValueError(f"{where} must be {hint.__name__}, got {type(plain).__name__}")
    return plain


def _fit_one_of(plain: Any, options: list[Any], where: str) -> Any:
    if plain is None and type(None) in options:
        return None
    if isinstance(plain, Mapping):
        value = decode(plain)
        if type(value) not in options:
            raise ValueError(f"{where} is a {type(value).__name__}")
        return value
    complaint = f"{where} got {type(plain).__name__}"
    for option in options:
        if option is not type(None) and not is_dataclass(option):
            try:
                return _fit(plain, option, where)
            except ValueError as misfit:
                complaint = str(misfit)
    raise ValueError(complaint)


def _fit_tuple(plain: Any, items: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(plain, list):
        raise ValueError(f"{where} must be a list, got {type(plain).__name__}")
    if len(items) == 2 and items[1] is Ellipsis:
        return tuple(_fit(item, items[0], where) for item in plain)
    if len(items) != len(plain):
        raise ValueError(f"{where} must have {len(items)} items, got {len(plain)}")
    return tuple(_fit(item, hint, where) for item, hint in zip(plain, items, strict=True))


def _bare(hint: Any) -> Any:
    """A NewType is what it is made of."""
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    return hint
