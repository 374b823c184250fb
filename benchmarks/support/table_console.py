"""The console for benchmark tables."""

from rich.console import Console

TABLE_WIDTH = 200


def table_console(*, stderr: bool = False) -> Console:
    """Returns the console of stdout, or of stderr.

    It is as wide as its terminal, which tables fit from 80 columns on. In a file or a pipe it is as
    wide as any table.
    """
    console = Console(stderr=stderr)
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    return console
