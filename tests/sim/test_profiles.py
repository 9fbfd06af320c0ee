"""Engine profiles: those that come with Tapewire load, and a wrong one is refused with the field's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.sim.profiles import FOLDER, load_profile, profile_names
from schemas.errors import ConfigError


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_loads(name: str) -> None:
    """Each profile is named as its file and holds the two extractors that the service classes need."""
    profile = load_profile(name)
    assert profile.name == name
    assert set(profile.wraps()) == {"headline", "filing"}
    assert profile.engine_limits(tapewire=True).max_model_len == profile.limits.max_model_len


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("step = 1.5e-3", "step = -1", "step"),
        ("step = 1.5e-3", "stepp = 1", "stepp"),
        ("block_size = 16", "block_size = 0", "block_size"),
        ("run_ahead = 1", "run_ahead = 1000", "run_ahead"),
        ("[costs]", "[costs", "profile"),
    ],
)
def test_a_wrong_profile_names_the_field(tmp_path: Path, old: str, new: str, named: str) -> None:
    """A negative cost, an unknown key, a zero limit or bad TOML is one error that says where."""
    text = (FOLDER / "h100-8b.toml").read_text("utf-8")
    assert old in text
    file = tmp_path / "mine.toml"
    file.write_text(text.replace(old, new, 1), "utf-8")
    with pytest.raises(ConfigError, match=named):
        load_profile(str(file))


@pytest.mark.parametrize("name", ["h100", "../h100-8b", "", "missing.toml"])
def test_a_profile_that_is_not_there_is_refused(name: str) -> None:
    """A name without a profile, or a file that is missing, is an error and no traceback."""
    with pytest.raises(ConfigError):
        load_profile(name)
