"""What the settings say of themselves, in ``--help`` and in docs/configuration.md."""

import inspect
import textwrap
from argparse import Action, RawDescriptionHelpFormatter
from collections.abc import Mapping

from pydantic import ByteSize
from pydantic.fields import FieldInfo


def default_text(field: FieldInfo) -> str:
    """Return a setting's default as one would write it; "" where its description says it.

    That is so where the default is none, or comes from the environment.
    """
    if field.default_factory is not None or field.default is None:
        return ""
    if isinstance(field.default, ByteSize):
        return field.default.human_readable().replace(".0", "")
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return str(field.default)


def help_formatter(fields: Mapping[str, FieldInfo]) -> type[RawDescriptionHelpFormatter]:
    """Return argparse's formatter for these settings, by their names.

    pydantic's own help ends in "(default: null)", in a factory's name, or in a
    size as bare bytes.
    """

    class SettingsHelp(RawDescriptionHelpFormatter):
        """Shows each setting with its description and its default."""

        def _get_help_string(self, action: Action) -> str | None:
            field = fields.get(action.dest)
            if field is None:
                return action.help
            default = default_text(field)
            tail = f" (default: {default})" if default else ""
            return f"{field.description}{tail}".replace("%", "%%")

        def _fill_text(self, text: str, width: int, indent: str) -> str:
            return super()._fill_text(inspect.cleandoc(text), width, indent)

        def _split_lines(self, text: str, width: int) -> list[str]:
            # As argparse does it, but a path stays whole.
            return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    return SettingsHelp
