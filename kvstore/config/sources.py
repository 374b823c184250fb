"""The TOML file as a source of settings."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import PydanticBaseSettingsSource, SettingsError

from kvstore.operator_files import NoRegularFile, read_regular


class ConfigFile(PydanticBaseSettingsSource):
    """The values of the TOML file of ``config_file``, if one is set."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Returns nothing, since the file is read as a whole."""
        del field
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """Returns the file's values; raises ``SettingsError`` if it cannot be read."""
        path = self.current_state.get("config_file")
        return {} if path is None else file_values(Path(path), self.settings_cls.model_fields)


def file_values(path: Path, fields: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """Returns the values of a TOML file; raises ``SettingsError``, also for unknown settings."""
    try:
        values = tomllib.loads(read_regular(path).content.decode())
    except NoRegularFile as error:
        raise SettingsError(f"config_file {error}") from error
    except (OSError, RecursionError, ValueError) as error:
        raise SettingsError(f"config_file {path}: {error}") from error
    if unknown := values.keys() - fields.keys():
        names = ", ".join(sorted(unknown))
        raise SettingsError(f"config_file {path}: no such setting: {names}")
    if "config_file" in values:
        raise SettingsError(f"config_file {path}: config_file cannot be set in the file itself")
    return values
