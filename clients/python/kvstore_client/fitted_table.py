"""A table that a terminal has room for: fewer columns, or records, and no word in parts."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from kvstore_client.terminal_text import printable

# Characters of a column's edge and of the space on its sides.
BESIDE = 3


class FittedTable:
    """Rows under named columns, as wide as there is room.

    Where all columns have none those of ``first`` stay, and of the others as many as fit; a
    line names what was left out. With ``wide``, without ``first``, or where not even those
    have room, each row is a record of one line a column.
    """

    def __init__(
        self,
        title: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        first: Sequence[str] = (),
        wide: bool = False,
    ) -> None:
        """``rows`` have a value for each column; what a terminal would obey in one is escaped."""
        self._title = title
        self._columns = columns
        # Names come from other programs: never markup, and nothing that a terminal obeys.
        self._rows = [[printable(str(value)) for value in row] for row in rows]
        self._first = () if wide else first

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what fits into the width of ``options``."""
        room = options.max_width
        everything = list(range(len(self._columns)))
        if self._least(everything) <= room:
            yield self._table(everything, room)
            return
        kept = [number for number in everything if self._columns[number] in self._first]
        if not kept or self._least(kept) > room:
            yield from self._records()
            return
        for number in everything:
            if number not in kept and self._least([*kept, number]) <= room:
                kept.append(number)
        yield self._table(sorted(kept), room)
        out = "; ".join(self._columns[number] for number in everything if number not in kept)
        yield Text(f"--wide shows also: {out}", style="dim")

    def _least(self, numbers: Sequence[int]) -> int:
        return sum(self._width_of(each, words=True) + BESIDE for each in numbers) + 1

    def _width_of(self, number: int, *, words: bool) -> int:
        """Return the width of a column's longest value or title, or of their longest word."""
        texts = [self._columns[number], *(row[number] for row in self._rows)]
        parts = [word for text in texts for word in text.split()] if words else texts
        return max(map(cell_len, parts), default=0)

    def _table(self, numbers: Sequence[int], room: int) -> Table:
        table = Table(title=self._title, title_justify="left")
        spare = room - self._least(numbers)
        for each in numbers:
            least = self._width_of(each, words=True)
            more = min(self._width_of(each, words=False) - least, spare)
            spare -= more
            table.add_column(self._columns[each], width=least + more, overflow="fold")
        for row in self._rows:
            table.add_row(*(Text(row[each]) for each in numbers))
        return table

    def _records(self) -> RenderResult:
        yield Text(self._title, style="italic")
        for row in self._rows:
            record = Table(box=None, show_header=False, pad_edge=False)
            record.add_column(no_wrap=True, style="dim")
            record.add_column(overflow="fold")
            for column, value in zip(self._columns, row, strict=True):
                record.add_row(Text(column), Text(value))
            yield record
            yield Text()
