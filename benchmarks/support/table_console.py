"""The console for benchmark tables, and tables with columns of keys."""

from rich import box
from rich.console import Console
from rich.table import Table

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


def keyed_table(title: str, *keys: str) -> Table:
    """Returns a table that begins with these columns."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for key in keys:
        table.add_column(key)
    return table
