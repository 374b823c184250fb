"""kvstore-ctl leases: the leases and their holds."""

from typing import Annotated

import typer

from kvstore_ctl import store_tables
from kvstore_ctl.console import AsJson, RuntimeDirOption, Wide, connected, show, show_json
from kvstore_ctl.message_json import plain
from kvstore_ctl.typed_values import leases_of, title_of


def leases(
    lease: Annotated[
        str, typer.Argument(help="Show each hold of the leases whose id or name begins with this.")
    ] = "",
    *,
    wide: Wide = False,
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Shows the workers' leases: names, processes, holds and ages.

    A lease is expired if its worker lives and has not renewed it in time. Its slots are then in
    quarantine, and its pins hold until the worker releases them or dies.
    """
    with connected(runtime_dir) as admin:
        listed = leases_of(admin.leases(), lease)
        holds = [admin.holds(each) for each in listed] if lease else []
        titles = {each.namespace_id: title_of(each) for each in admin.namespaces()}
    if as_json and lease:
        found = zip(listed, holds, strict=True)
        show_json([plain(each) | {"holds": [plain(hold) for hold in its]} for each, its in found])
    elif as_json:
        show_json([plain(each) for each in listed])
    else:
        show(store_tables.leases_table(listed, wide=wide))
        for each, its in zip(listed, holds, strict=False):
            title = f"holds of {each.lease_id.hex()}"
            show(store_tables.holds_table(its, titles, title=title, wide=wide))
