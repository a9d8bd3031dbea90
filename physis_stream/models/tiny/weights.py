"""Read and write a world of family `tiny`: a folder in diffusers layout with a profile.

    profile.json
    transformer/{config.json, diffusion_pytorch_model.safetensors}      codec/…      readout/…
    starts.safetensors    latents (N, C, h, w), actions (N, A), states (N, D): frames that a session may open with

Files are checked by their headers first (complete, the names and shapes that the configuration asks for), so that a bad
folder is refused before memory is taken.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from physis_stream.core.context_rule import Discipline
from physis_stream.models.noise_schedule import Renoise
from physis_stream.models.profile import (
    ActionProfile,
    ReadoutProfile,
    RuleChoice,
    WorldError,
    WorldProfile,
    profile_json,
    read_profile,
)  # fmt: skip
from physis_stream.models.tiny.codec import TinyCausalCodec
from physis_stream.models.tiny.model import TinyWorldTransformer
from physis_stream.models.tiny.profile import FAMILY, check
from physis_stream.models.tiny.readout import TinyReadout
from physis_stream.models.tiny.vision import TinyVision

Module = TypeVar("Module", bound=torch.nn.Module)
WEIGHTS = "diffusion_pytorch_model.safetensors"


class Starts(NamedTuple):
    """Frames a session may open with: normalised latents (N, C, h, w), the action (N, A) that keeps each at rest, and
    the simulator's state (N, D) in the readout's units. All fp32. `core.seeds.start_index` picks a session's one by its
    seed."""

    latents: Tensor
    actions: Tensor
    states: Tensor


class LoadedWorld(NamedTuple):
    """A world in memory: modules in eval mode without gradients."""

    profile: WorldProfile
    transformer: TinyWorldTransformer
    codec: TinyCausalCodec
    readout: TinyReadout
    starts: Starts

    @property
    def vision(self) -> TinyVision:
        """Codec and readout as one map between pictures and the transformer's latents."""
        return TinyVision(self.codec, self.readout, has_state=self.transformer.state_values > 0)


def load_folder(folder: Path, dtype: torch.dtype = torch.float32) -> LoadedWorld:
    """Load a world; `dtype` is that of transformer and codec (the readout stays fp32). Raises WorldError or
    ProfileError."""
    profile = read_profile(folder)
    if profile.family != FAMILY:
        raise WorldError(f"{folder} is of family {profile.family!r}; this loader reads {FAMILY!r}")
    transformer = _load_module(TinyWorldTransformer, folder / "transformer")
    codec = _load_module(TinyCausalCodec, folder / "codec")
    readout = _load_module(TinyReadout, folder / "readout")
    check(profile, transformer, codec, readout)
    path = folder / "starts.safetensors"
    _header(path)
    parts = load_file(str(path))
    try:
        starts = Starts(*(parts[name].float() for name in Starts._fields))
    except KeyError as missing:
        raise WorldError(f"{path} lacks {missing}; expected {', '.join(Starts._fields)}") from missing
    return assemble(profile, transformer, codec, readout, starts, dtype)


def assemble(
    profile: WorldProfile, transformer: TinyWorldTransformer, codec: TinyCausalCodec, readout: TinyReadout,
    starts: Starts, dtype: torch.dtype = torch.float32,
) -> LoadedWorld:  # fmt: skip
    """Make a world of modules: eval mode, no gradients, the codec's convolutions in channels-last layout."""
    for module in (transformer, codec, readout):
        module.requires_grad_(False).eval()
    for module in (transformer, codec):
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.data = tensor.data.to(dtype)
    codec.to(memory_format=torch.channels_last)
    return LoadedWorld(profile, transformer, codec, readout, starts)


def save_folder(world: LoadedWorld, folder: Path, dtype: torch.dtype = torch.float16) -> None:
    """Write a world to `folder` in the layout that `load_folder` reads; floating-point tensors are stored as
    `dtype`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "profile.json").write_text(profile_json(world.profile), encoding="utf-8")
    for name in ("transformer", "codec", "readout"):
        module: Any = getattr(world, name)
        module.save_config(folder / name)
        _forget_origin(folder / name / "config.json")
        tensors = {key: value.to(dtype).contiguous() for key, value in module.state_dict().items()}
        save_file(tensors, str(folder / name / WEIGHTS), metadata={"format": "pt"})
    latents, actions, states = world.starts
    starts = {"latents": latents.half().contiguous(), "actions": actions.contiguous(), "states": states.contiguous()}
    save_file(starts, str(folder / "starts.safetensors"))


def _forget_origin(config: Path) -> None:
    """Drop the folder that a module was once loaded from: it names the machine that trained it."""
    content = json.loads(config.read_text(encoding="utf-8"))
    content.pop("_name_or_path", None)
    config.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _header(path: Path) -> dict[str, Any]:
    """Read a safetensors header; raises WorldError if the file is missing, damaged or cut short."""
    if not path.is_file():
        raise WorldError(f"{path} is missing; fetch the world again or train it")
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
        if length > min(size, 16_000_000):
            raise WorldError(f"{path} is no safetensors file: its header would be {length} bytes of {size}")
        try:
            header: dict[str, Any] = json.loads(file.read(length))
            needed = (
                8 + length + max(entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__")
            )
        except (ValueError, KeyError, TypeError) as wrong:
            raise WorldError(f"{path} is no safetensors file: its header cannot be read ({wrong})") from wrong
    if size != needed:
        raise WorldError(f"{path} is {size} bytes but its header announces {needed}; the file is cut short or damaged")
    header.pop("__metadata__", None)
    return header


def _load_module(kind: Callable[..., Module], folder: Path) -> Module:
    """Build a module from its configuration and load its weights, after comparing names and shapes by header alone."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as wrong:
        raise WorldError(f"{folder}/config.json cannot be read: {wrong}") from wrong
    arguments = {key: value for key, value in config.items() if not key.startswith("_")}
    header = _header(folder / WEIGHTS)
    try:
        with torch.device("meta"):
            expected = {name: list(tensor.shape) for name, tensor in kind(**arguments).state_dict().items()}
    except (TypeError, ValueError) as wrong:
        raise WorldError(
            f"{folder}/config.json does not describe a {getattr(kind, '__name__', kind)}: {wrong}"
        ) from wrong
    found = {name: entry["shape"] for name, entry in header.items()}
    if found != expected:
        differing = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        name = differing[0]
        raise WorldError(
            f"{folder}/{WEIGHTS} does not fit config.json in {len(differing)} tensors, first {name}: "
            f"expected {expected.get(name)}, found {found.get(name)}"
        )
    module = kind(**arguments)
    module.load_state_dict(load_file(str(folder / WEIGHTS)))
    return module


def tiny_random(
    seed: int = 0, *, window: int = 6, num_steps: int = 3, sink: int = 0, latent_channels: int = 4, width: int = 64,
    num_layers: int = 2, num_heads: int = 2, size: int = 96, num_starts: int = 4, dtype: torch.dtype = torch.float32,
    has_state: bool = True,
) -> LoadedWorld:  # fmt: skip
    """Make a small world of random weights for tests of the engine: right shapes, no sense, all disciplines offered.
    `has_state` gives its latents a state plane after the `latent_channels` of the picture."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        cells = size // 8
        channels = latent_channels + has_state
        transformer = TinyWorldTransformer(
            channels, cells, cells, width=width, num_layers=num_layers, num_heads=num_heads,
            action_low=(0.0, 0.0), action_high=(512.0, 512.0), state_values=7 if has_state else 0,
        )  # fmt: skip
        if has_state:
            # Random dynamics over fine features are chaotic: rounding would grow until no two paths agreed.
            transformer.state_in.weight.data *= 0.03
            transformer.state_out.weight.data *= 0.2
        codec = TinyCausalCodec(size, size, latent_channels, 16, 32)
        readout = TinyReadout(6, (4,), latent_channels, cells, cells, 8, 16)
        starts = Starts(
            torch.randn(num_starts, channels, cells, cells),
            torch.rand(num_starts, 2) * 512,
            torch.rand(num_starts, 6),
        )
    profile = WorldProfile(
        family=FAMILY,
        name="tiny-random",
        rules=(
            RuleChoice(Discipline.CASCADE, True),
            RuleChoice(Discipline.CASCADE, False),
            RuleChoice(Discipline.CLEAN, True),
            RuleChoice(Discipline.SAME_STEP, False),
        ),
        num_steps=num_steps,
        levels=tuple(1.0 - 0.6 * step / num_steps for step in range(num_steps)),
        commit_level=0.05,
        renoise=Renoise.FRESH,
        window=window,
        sink=sink,
        chunk_frames=1,
        fps=10.0,
        height=size,
        width=size,
        latent=(channels, cells, cells),
        tokens_per_frame=transformer.tokens_per_row,
        action=ActionProfile(("x", "y"), (0.0, 0.0), (512.0, 512.0), (256.0, 256.0), "latest"),
        readout=ReadoutProfile(("agent_x", "agent_y", "block_x", "block_y", "block_angle", "reward"), ("",) * 6, (4,)),
    )
    return assemble(profile, transformer, codec, readout, starts, dtype)
