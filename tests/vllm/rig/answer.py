"""Messages between a case and its engine: calls and counters."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """One call of a method of vLLM's engine."""

    method: str
    arguments: tuple[object, ...]
    named: dict[str, object]


@dataclass(frozen=True)
class Counts:
    """Totals of one engine since its start, each by its name and labels."""

    by_name: dict[str, float]

    def get(self, name: str) -> float:
        """Returns the sum of the counters of a name, whatever their labels."""
        return sum(
            value for each, value in self.by_name.items() if each.split("{", maxsplit=1)[0] == name
        )

    def labelled(self, name: str, label: str) -> float:
        """Returns a counter with that value in one of its labels; 0 where there is none."""
        return sum(
            value
            for each, value in self.by_name.items()
            if each.startswith(name + "{") and f'"{label}"' in each
        )

    def since(self, before: "Counts") -> "Counts":
        """Returns what was counted since an earlier look."""
        return Counts({n: v - before.by_name.get(n, 0.0) for n, v in self.by_name.items()})
