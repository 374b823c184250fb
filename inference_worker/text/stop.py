"""Text up to the first of some strings, which may come in pieces."""

from collections.abc import Sequence


class StopText:
    """Holds back what may become one of the strings, and cuts the text before the first.

    Which is first does not depend on the pieces: the one that ends first, and of those that end
    together the longest. Takes time by the character (Knuth, Morris and Pratt). Not thread-safe.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ``ValueError`` for an empty string."""
        if not all(stops):
            raise ValueError("a stop string has at least one character")
        self._stops = [(stop, _borders(stop)) for stop in stops]
        # Of each string, how much of its beginning is the end of the text.
        self._found = [0] * len(self._stops)
        self._held = ""
        self.stopped = False

    def add(self, text: str) -> str:
        """Takes a piece, and gives what is certainly not part of a stop string."""
        text = self._held + text
        for place in range(len(self._held), len(text)):
            ended = self._step(text[place])
            if ended:
                self.stopped = True
                self._held = ""
                return text[: place + 1 - ended]
        held = max(self._found, default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def end(self) -> str:
        """Gives what was held back, since nothing follows it."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> int:
        """Takes one character; gives how long the string is that ends with it, or 0."""
        ended = 0
        for number, (stop, borders) in enumerate(self._stops):
            found = self._found[number]
            while found and stop[found] != character:
                found = borders[found]
            found += stop[found] == character
            self._found[number] = found
            if found == len(stop):
                ended = max(ended, found)
        return ended


def _borders(stop: str) -> list[int]:
    """Gives for each length of a beginning the longest shorter one that it also ends with."""
    borders = [0, 0]
    for place in range(1, len(stop)):
        found = borders[place]
        while found and stop[found] != stop[place]:
            found = borders[found]
        borders.append(found + (stop[found] == stop[place]))
    return borders
