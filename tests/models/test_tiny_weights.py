"""A world folder is read whole or refused before memory is taken."""

import json
import shutil

import pytest
import torch

from physis_stream.models.tiny.weights import WEIGHTS, save_folder, tiny_random
from physis_stream.worlds import ProfileError, WorldError, load_profile, load_world, names


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    save_folder(tiny_random(seed=5), folder, torch.float32)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "world")


def test_what_was_saved_is_loaded(saved):
    world, loaded = tiny_random(seed=5), load_world(saved)
    assert loaded.profile == world.profile == load_profile(saved)
    for name in ("transformer", "codec", "readout"):
        mine, other = getattr(world, name).state_dict(), getattr(loaded, name).state_dict()
        assert all(torch.equal(mine[key], other[key]) for key in mine)
    assert torch.allclose(world.starts.latents, loaded.starts.latents, atol=2e-3)
    assert torch.equal(world.starts.actions, loaded.starts.actions)


def test_stored_in_half_precision_it_comes_back_in_full_and_nearly_the_same(tmp_path):
    world = tiny_random(seed=5)
    save_folder(world, tmp_path)
    loaded = load_world(tmp_path)
    assert loaded.transformer.dtype == torch.float32
    mine, other = world.transformer.state_dict(), loaded.transformer.state_dict()
    assert all(torch.allclose(mine[key], other[key], rtol=1e-3, atol=1e-6) for key in mine)


def test_precision_is_the_callers_choice(saved):
    world = load_world(saved, torch.bfloat16)
    assert world.transformer.dtype == world.codec.dtype == torch.bfloat16
    assert world.readout.dtype == torch.float32


def test_the_layout_is_that_of_diffusers(saved):
    from physis_stream.models.tiny.model import TinyWorldTransformer

    again = TinyWorldTransformer.from_pretrained(saved / "transformer")
    assert torch.equal(again.patch_in.weight, tiny_random(seed=5).transformer.patch_in.weight)


def test_an_unknown_world_is_refused_with_the_names_there_are():
    with pytest.raises(WorldError, match=r"no world .pong..*(pusht|none here)"):
        load_world("pong")


def test_a_truncated_file_is_refused(folder):
    path = folder / "transformer" / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WorldError, match="cut short or damaged"):
        load_world(folder)


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x08\0\0\0\0\0\0\0notjson!"])
def test_what_is_no_safetensors_file_is_refused(folder, content):
    (folder / "codec" / WEIGHTS).write_bytes(content)
    with pytest.raises(WorldError, match="no safetensors file"):
        load_world(folder)


def test_weights_of_another_shape_are_refused_naming_the_first(folder):
    path = folder / "transformer" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"width": 96}))
    with pytest.raises(WorldError, match=r"does not fit config\.json in \d+ tensors, first .*expected \[.*found \["):
        load_world(folder)


def test_a_config_that_describes_no_module_is_refused(folder):
    path = folder / "codec" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"flavour": "sweet"}))
    with pytest.raises(WorldError, match="does not describe a TinyCausalCodec"):
        load_world(folder)


def test_a_missing_file_is_named(folder):
    (folder / "readout" / WEIGHTS).unlink()
    with pytest.raises(WorldError, match=r"readout.*is missing"):
        load_world(folder)


def test_a_profile_that_contradicts_its_weights_is_refused(folder):
    path = folder / "profile.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokens_per_frame": 64}))
    with pytest.raises(ProfileError, match="tokens_per_frame is 64, the weights have 17"):
        load_world(folder)


def test_another_family_is_refused(folder):
    path = folder / "profile.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"family": "wan"}))
    with pytest.raises(WorldError, match="family 'wan'"):
        load_world(folder)


@pytest.mark.parametrize("name", names())
def test_every_world_that_ships_loads_and_runs(name):
    world = load_world(name)
    count = len(world.starts.latents)
    assert count >= 16
    frames, _ = world.codec.decode(world.starts.latents[:4, None], world.codec.initial_state(4))
    assert frames.shape == (4, 1, 3, world.profile.height, world.profile.width)
    assert world.readout(world.starts.latents[:4]).shape == (4, len(world.profile.readout.names))
