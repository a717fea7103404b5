"""Tests of the sampling defaults read from generation_config.json."""

import dataclasses
import json

import pytest

from lily.errors import ConfigError
from lily.text import GenerationDefaults, read_generation_defaults


def defaults_of(directory, **fields) -> GenerationDefaults:
    (directory / "generation_config.json").write_text(json.dumps(fields), encoding="utf-8")
    return read_generation_defaults(directory)


def test_lily_tiny(tiny):
    assert read_generation_defaults(tiny) == GenerationDefaults(do_sample=True, temperature=0.6, top_k=20, top_p=0.95)


def test_a_missing_file_says_nothing(tmp_path):
    assert read_generation_defaults(tmp_path) == GenerationDefaults()
    assert all(value is None for value in dataclasses.astuple(GenerationDefaults()))


def test_every_field(tmp_path):
    fields = {
        "do_sample": False,
        "temperature": 1,
        "top_k": 0,
        "top_p": 1,
        "min_p": 0.05,
        "repetition_penalty": 1.5,
    }
    assert defaults_of(tmp_path, **fields, unknown=3) == GenerationDefaults(False, 1.0, 0, 1.0, 0.05, 1.5)


def test_nulls_say_nothing(tmp_path):
    names = [field.name for field in dataclasses.fields(GenerationDefaults)]
    assert defaults_of(tmp_path, **dict.fromkeys(names)) == GenerationDefaults()


@pytest.mark.parametrize(
    ("fields", "greedy"),
    [({}, False), ({"do_sample": False}, True), ({"do_sample": True}, False), ({"temperature": 0}, True)],
)
def test_greedy(tmp_path, fields, greedy):
    assert defaults_of(tmp_path, **fields).greedy is greedy


@pytest.mark.parametrize(
    ("name", "value"),
    [("do_sample", value) for value in (1, "true", [])]
    + [("temperature", value) for value in (-0.1, "1", True, 10**400, [1.0])]
    + [("top_k", value) for value in (-1, 20.0, True, "20", 2**63)]
    + [(name, value) for name in ("top_p", "min_p") for value in (-0.01, 1.01, False, {})]
    + [("repetition_penalty", value) for value in (0, -1, "no")],
)
def test_bad_values_are_named(tmp_path, name, value):
    with pytest.raises(ConfigError, match=rf"generation_config\.json: {name} must be"):
        defaults_of(tmp_path, **{name: value})


def test_defaults_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GenerationDefaults().temperature = 2.0
