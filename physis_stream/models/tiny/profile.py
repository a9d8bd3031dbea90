"""How a profile of family `tiny` is made from its modules, and checked against them."""

from __future__ import annotations

from physis_stream.models.profile import ProfileError, WorldProfile
from physis_stream.models.tiny.codec import TinyCausalCodec
from physis_stream.models.tiny.model import TinyWorldTransformer
from physis_stream.models.tiny.readout import TinyReadout

FAMILY = "tiny"


def check(
    profile: WorldProfile, transformer: TinyWorldTransformer, codec: TinyCausalCodec, readout: TinyReadout
) -> None:
    """Raise ProfileError if the profile says other than the modules' configurations."""
    shape = (transformer.config.latent_channels, transformer.config.latent_height, transformer.config.latent_width)
    has_state = transformer.state_values > 0
    facts = {
        "family": (profile.family, FAMILY),
        "latent": (profile.latent, (codec.latent_shape[0] + has_state, *codec.latent_shape[1:])),
        "latent of the transformer": (profile.latent, shape),
        "tokens_per_frame": (profile.tokens_per_frame, transformer.tokens_per_row),
        "height and width": ((profile.height, profile.width), (codec.config.height, codec.config.width)),
        "chunk_frames": (profile.chunk_frames, 1),
        "action.low": (profile.action.low, tuple(transformer.config.action_low)),
        "action.high": (profile.action.high, tuple(transformer.config.action_high)),
        "readout.angles": (profile.readout.angles, tuple(readout.config.angles)),
        "numbers in the state plane": (transformer.state_values, readout.num_targets if has_state else 0),
        "number of readouts": (len(profile.readout.names), readout.config.num_states),
    }
    wrong = [f"{name} is {said}, the weights have {found}" for name, (said, found) in facts.items() if said != found]
    if wrong:
        raise ProfileError(f"profile of {profile.name!r} does not fit its weights: " + "; ".join(wrong))
