"""Label values from names that clients choose: few, short and printable."""

from collections.abc import Iterable

# Shared value for all names beyond the limit.
OTHER = "other"
MAX_LENGTH = 64
MOST_TENANTS = 32
MOST_NAMESPACES_OF_TENANT = 16
MOST_NAMESPACES = 128
MOST_OWNERS = 128
UNNAMED = "unnamed"


def clean(text: str) -> str:
    """Returns a name of at most 64 characters, all printable."""
    shown = "".join(each if each.isprintable() else "?" for each in text[:MAX_LENGTH])
    return shown.strip() or UNNAMED


class Names:
    """Keeps the first names, and replaces all others by ``other``.

    For counters: a name keeps its value for as long as the store runs.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, text: str) -> str:
        """Returns the label value for a name."""
        name = clean(text)
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return name


class TenantNames:
    """Values of the labels tenant and namespace."""

    def __init__(self) -> None:
        self._tenants = Names(MOST_TENANTS)
        self._namespaces: dict[str, Names] = {}
        self._all = Names(MOST_NAMESPACES)

    def tenant(self, tenant: str) -> str:
        """Returns the label value for a tenant."""
        return self._tenants.of(tenant)

    def namespace(self, tenant: str, namespace: str) -> tuple[str, str]:
        """Returns the label values for a tenant and one of its namespaces."""
        owner = self.tenant(tenant)
        own = self._namespaces.setdefault(owner, Names(MOST_NAMESPACES_OF_TENANT))
        name = own.of(namespace)
        if name == OTHER or self._all.of(f"{owner} {name}") == OTHER:
            return owner, OTHER
        return owner, name

    def others(self, tenant: str) -> tuple[str, str]:
        """Returns a tenant's label value and the shared one of its namespaces without their own."""
        return self.tenant(tenant), OTHER


class PassingNames:
    """As :class:`Names`, for gauges: a name that no longer exists makes room for another."""

    def __init__(self, most: int = MOST_OWNERS) -> None:
        self._most = most
        self._known: dict[tuple[str, str], None] = {}

    def show(self, present: Iterable[tuple[str, str]]) -> None:
        """Sets the names that exist now, by tenant label, before the first ``of``."""
        there = dict.fromkeys((tenant, clean(name)) for tenant, name in present)
        kept = [each for each in self._known if each in there]
        fresh = [each for each in there if each not in self._known]
        self._known = dict.fromkeys([*kept, *fresh][: self._most])

    def of(self, tenant: str, text: str) -> tuple[str, str]:
        """Returns the label values for a tenant label and a name."""
        name = clean(text)
        return (tenant, name) if (tenant, name) in self._known else (tenant, OTHER)
