"""What the settings say of themselves in ``--help``."""

import inspect
import textwrap
from argparse import Action, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping

from pydantic.fields import FieldInfo

from kvstore.config_about import about, default_text


def help_formatter(fields: Mapping[str, FieldInfo]) -> type[RawDescriptionHelpFormatter]:
    """Return argparse's formatter for these settings, by their names.

    pydantic's own help ends in "(default: null)", in a factory's name, or in a
    size as bare bytes, and says of a value the name of its type in Python.
    """

    class SettingsHelp(RawDescriptionHelpFormatter):
        """Shows each setting with its description and its default."""

        def _metavar_formatter(
            self, action: Action, default_metavar: str
        ) -> Callable[[int], tuple[str, ...]]:
            field = fields.get(action.dest)
            metavar = field and about(action.dest, field).metavar
            if metavar:
                return lambda count: (metavar,) * count
            return super()._metavar_formatter(action, default_metavar)

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
