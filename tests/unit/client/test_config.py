"""Settings: order of sources, strict files, and keys that stay where they belong."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from ytk_client.cli.config import show_config
from ytk_client.config import load_settings
from ytk_core.errors import BoardError, UserError


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def environment(tmp_path, home):
    return {"YTK_HOME": str(home), "YTK_CONFIG": str(tmp_path / "config.toml")}


def started(home, address="127.0.0.1:7", key="up-key"):
    (home / "up/tokens").mkdir(parents=True)
    (home / "up/tokens/client.key").write_text(key + "\n")
    (home / "up/client.toml").write_text(f'controller = "{address}"\napi_key_file = "tokens/client.key"\n')


def test_up_is_found_without_any_setting(environment, home):
    started(home)
    settings = load_settings(environment=environment)
    assert settings.address() == "127.0.0.1:7"
    assert settings.api_key.value == "up-key"
    assert settings.controller.source.startswith("ytk up")


def test_order_is_flag_environment_file_up(environment, home, tmp_path):
    started(home)
    (tmp_path / "config.toml").write_text('controller = "file:1"\napi_key = "file-key"\n')
    assert load_settings(environment=environment).controller.value == "file:1"
    environment |= {"YTK_CONTROLLER": "env:1", "YTK_API_KEY": "env-key"}
    assert load_settings(environment=environment).controller.value == "env:1"
    (tmp_path / "flag.key").write_text("flag-key")
    settings = load_settings(controller="flag:1", api_key_file=str(tmp_path / "flag.key"), environment=environment)
    assert (settings.controller.value, settings.api_key.value) == ("flag:1", "flag-key")
    assert settings.controller.source == "flag --controller"
    assert "flag.key" in settings.api_key.source


def test_key_of_up_is_not_sent_to_another_controller(environment, home):
    started(home)
    settings = load_settings(controller="elsewhere:1", environment=environment)
    assert settings.api_key.value is None
    assert load_settings(controller="127.0.0.1:7", environment=environment).api_key.value == "up-key"


def test_key_file_of_a_settings_file_is_relative_to_it(environment, tmp_path):
    (tmp_path / "k").write_text("own-key")
    (tmp_path / "config.toml").write_text('controller = "h:1"\napi_key_file = "k"\n')
    assert load_settings(environment=environment).api_key.value == "own-key"


def test_nothing_set_says_how_to_start_one(environment):
    with pytest.raises(BoardError, match="no controller is known") as caught:
        load_settings(environment=environment).address()
    assert caught.value.code == "no_controller"
    assert "ytk up" in caught.value.hint


@pytest.mark.parametrize("address", ["host", "host:", ":7", "host:0", "host:70000", "host:x"])
def test_bad_address_names_its_source(environment, address):
    with pytest.raises(UserError, match="flag --controller"):
        load_settings(controller=address, environment=environment).address()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('controler = "h:1"\n', ["controler", "h:1"]),
        ("controller = 7\n", ["str", "int"]),
        ("controller = \n", ["not TOML"]),
    ],
)
def test_settings_file_is_strict(environment, tmp_path, text, words):
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(UserError) as caught:
        load_settings(environment=environment)
    assert "config.toml" in caught.value.message
    for word in words:
        assert word in caught.value.message
    if "controler" in text:
        assert "controller" in caught.value.hint


@pytest.mark.parametrize("content", [b"", b"two words", b"\xff\xfe"])
def test_bad_key_file_is_named(environment, tmp_path, content):
    path = tmp_path / "bad.key"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"bad\.key") as caught:
        load_settings(controller="h:1", api_key_file=str(path), environment=environment)
    assert caught.value.code == "bad_key_file"
    assert "flag --api-key-file" in caught.value.message


def test_missing_key_file_names_the_variable(environment, tmp_path):
    environment["YTK_API_KEY_FILE"] = str(tmp_path / "none")
    with pytest.raises(UserError, match="environment YTK_API_KEY_FILE"):
        load_settings(environment=environment)


def test_show_prints_sources_and_hides_the_key(environment, home, monkeypatch):
    started(home, key="abcd-very-long-secret")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in ("YTK_CONTROLLER", "YTK_API_KEY", "YTK_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(show_config, ["-o", "json"])
    assert result.exit_code == 0, result.output
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["controller"]["value"] == "127.0.0.1:7"
    assert rows["home"]["source"] == "environment YTK_HOME"
    assert "secret" not in result.output
    table = CliRunner().invoke(show_config, [])
    assert "abcd..." in table.stdout
    assert "secret" not in table.output
