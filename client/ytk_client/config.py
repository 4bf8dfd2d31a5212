"""Where the controller is and which key opens it: flag, environment, file, then what ``ytk up`` left.

The environment is read here and nowhere else in the client.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ytk_core.errors import BoardError, UserError

CONTROLLER = "controller"
API_KEY = "api_key"
API_KEY_FILE = "api_key_file"
HOME = "home"


class FileSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The keys of ``config.toml`` and of the ``client.toml`` that ``ytk up`` writes."""

    controller: str | None = None
    api_key: str | None = None
    api_key_file: str | None = None


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A value and where it came from; None where nothing gave one."""

    name: str
    value: str | None
    source: str

    @property
    def shown(self) -> str:
        """The value as it may be printed: a key only by its ends."""
        if self.value is None:
            return "-"
        if self.name == API_KEY:
            return f"{self.value[:4]}..." if len(self.value) > 12 else "..."
        return self.value


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of the client."""

    home: Setting
    controller: Setting
    api_key: Setting

    def rows(self) -> tuple[Setting, ...]:
        """Give the settings in the order in which ``ytk config show`` prints them."""
        return (self.controller, self.api_key, self.home)

    def address(self) -> str:
        """Give the controller's ``HOST:PORT``.

        Raises:
            BoardError: No controller is known.
            UserError: The address is not ``HOST:PORT``.
        """
        if self.controller.value is None:
            raise BoardError(
                "no controller is known",
                code="no_controller",
                hint="Start one on this machine with `ytk up`, or name one with --controller HOST:PORT or YTK_CONTROLLER.",
            )
        host, colon, port = self.controller.value.rpartition(":")
        if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
            raise UserError(
                f"not a controller address: {self.controller.value!r} (from {self.controller.source})",
                code="bad_address",
                hint="An address is HOST:PORT, for example 127.0.0.1:7420.",
            )
        return self.controller.value


def home_directory(environment: Mapping[str, str]) -> Setting:
    """Give the directory for everything that the toolkit keeps on this machine."""
    if environment.get("YTK_HOME"):
        return Setting(name=HOME, value=environment["YTK_HOME"], source="environment YTK_HOME")
    return Setting(name=HOME, value=str(Path.home() / ".local/share/yasp-toolkit"), source="default")


def client_file(home: Path) -> Path:
    """Give the file in which ``ytk up`` leaves its address and the name of its key file."""
    return home / "up" / "client.toml"


def read_settings_file(path: Path) -> FileSettings:
    """Read one settings file strictly.

    Raises:
        UserError: It cannot be read, is not TOML, or has an unknown key or a bad value.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise UserError(f"cannot read the settings file {path}: {err.strerror}", code="bad_config") from err
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise UserError(f"{path} is not TOML: {err}", code="bad_config") from err
    allowed = ", ".join(field.name for field in msgspec.structs.fields(FileSettings))
    unknown = sorted(set(values) - set(FileSettings.__struct_fields__))
    if unknown:
        raise UserError(
            f"{path}: unknown key {unknown[0]!r} (value {values[unknown[0]]!r})",
            code="bad_config",
            hint=f"Allowed keys: {allowed}.",
        )
    try:
        return msgspec.convert(values, FileSettings)
    except msgspec.ValidationError as err:
        raise UserError(f"{path}: {err}", code="bad_config", hint=f"Each of {allowed} is a string.") from err


def _first(name: str, *choices: tuple[str | None, str]) -> Setting:
    for value, source in choices:
        if value:
            return Setting(name=name, value=value, source=source)
    return Setting(name=name, value=None, source="not set")


def _key_from_file(path_text: str, source: str, base: Path) -> tuple[str, str]:
    """Read a key file; a relative path is relative to ``base``."""
    path = base / Path(path_text).expanduser()
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as err:
        reason = err.strerror if isinstance(err, OSError) else "not text"
        raise UserError(
            f"cannot read the API key file {path} (from {source}): {reason}",
            code="bad_key_file",
            hint="Name a readable file that holds nothing but the key.",
        ) from err
    if not key:
        raise UserError(f"the API key file {path} (from {source}) is empty", code="bad_key_file")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise UserError(f"the file {path} (from {source}) does not hold one API key", code="bad_key_file")
    return key, f"{source} ({path})"


def load_settings(
    *,
    controller: str | None = None,
    api_key_file: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Resolve every setting.

    The key that ``ytk up`` wrote is used only for the controller that ``ytk up`` started, so that it never travels to
    another one.

    Args:
        controller: ``--controller``.
        api_key_file: ``--api-key-file``.
        environment: Defaults to the process environment.

    Raises:
        UserError: A settings file or a key file is wrong; the message names it.
    """
    env = os.environ if environment is None else environment
    home = home_directory(env)
    own_text = env.get("YTK_CONFIG") or ""
    own_path = Path(own_text).expanduser() if own_text else Path.home() / ".config/yasp-toolkit/config.toml"
    own = read_settings_file(own_path) if own_path.exists() else FileSettings()
    up_path = client_file(Path(home.value or "."))
    started = read_settings_file(up_path) if up_path.is_file() else FileSettings()

    address = _first(
        CONTROLLER,
        (controller, "flag --controller"),
        (env.get("YTK_CONTROLLER"), "environment YTK_CONTROLLER"),
        (own.controller, f"file {own_path}"),
        (started.controller, f"ytk up ({up_path})"),
    )
    key = Setting(name=API_KEY, value=None, source="not set")
    levels: list[tuple[str | None, str | None, str, str, Path]] = [
        (None, api_key_file, "", "flag --api-key-file", Path()),
        (
            env.get("YTK_API_KEY"),
            env.get("YTK_API_KEY_FILE"),
            "environment YTK_API_KEY",
            "environment YTK_API_KEY_FILE",
            Path(),
        ),
        (own.api_key, own.api_key_file, f"file {own_path}", f"file {own_path}", own_path.parent),
    ]
    if address.value == started.controller:
        levels.append((started.api_key, started.api_key_file, f"ytk up ({up_path})", "ytk up", up_path.parent))
    for direct, file_name, source, file_source, base in levels:
        if direct:
            key = Setting(name=API_KEY, value=direct.strip(), source=source)
            break
        if file_name:
            value, where = _key_from_file(file_name, file_source, base)
            key = Setting(name=API_KEY, value=value, source=where)
            break
    return Settings(home=home, controller=address, api_key=key)
