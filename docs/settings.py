"""Writes docs/configuration.md from the settings of the server and of the client.

Run it after a change of a setting: `.venv/bin/python docs/settings.py`.
The result is committed, and tests/static/test_generated_code.py keeps the two in step.
`--out FILE` writes another file instead, and leaves the tree alone.
"""

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path

from kvstore.config import Config
from kvstore.config_help import default_text
from kvstore_client import ClientConfig

PAGE = Path(__file__).resolve().parent / "configuration.md"
HEAD = """\
# Configuration

Written by `docs/settings.py` from the settings' own descriptions: do not edit.

## `kvstore-server`

A flag wins over the environment, the environment over the file, the file over the default.
`--tier1-bytes 2GiB` is `KVSTORE_TIER1_BYTES=2GiB` in the environment, and `tier1_bytes = "2GiB"` in the TOML file that `--config-file` names.
An unknown setting, or a value that cannot be, ends the server with status 2 and a line that names it.
[deploy/](../deploy/README.md) has an example of each.

Times are in seconds. Sizes are bytes, or have a unit: `512MiB`, `2GB`. How many tokens fit into one is in [sizing.md](sizing.md).
"""
CLIENT = """
## `kvstore_client.ClientConfig`

What a program hands to `Client(runtime_dir, ClientConfig(...))`. Times are in seconds.
"""
ENVIRONMENT = """
## Environment

| variable | who reads it | what it is |
| --- | --- | --- |
| `KVSTORE_RUNTIME_DIR` | server, clients, `kvstore-worker`, `kvstore-ctl` | folder of the sockets; without it `$XDG_RUNTIME_DIR/kvstore`, else `/tmp/kvstore-UID` |
| `KVSTORE_` and a setting's name | server | that setting |
| `KVSTORE_ADDRESS`, `KVSTORE_TOKEN_FILE`, `KVSTORE_TOKEN`, `KVSTORE_TLS_CA`, `KVSTORE_CLIENT_CERT`, `KVSTORE_CLIENT_KEY` | `kvstore-ctl` | a store on another host, and who calls: [tenants.md](tenants.md#over-the-network) |
| `KVSTORE_CACHE` | `kvstore-worker` | folder of converted models; without it `$XDG_CACHE_HOME/kvstore`, else `~/.cache/kvstore` |
| `KVSTORE_FAULT` | clients under test | a point at which the process kills or stops itself, see [clients](../clients/README.md#tests-of-your-own) |
"""


def server_settings() -> Iterator[str]:
    """Yield a section for each setting of the server."""
    for name, field in Config.model_fields.items():
        default = default_text(field)
        spellings = f"`--{name.replace('_', '-')}`, `KVSTORE_{name.upper()}`"
        yield f"\n### `{name}`\n\n{spellings}{f'; default `{default}`' if default else ''}\n\n"
        yield f"{inspect.cleandoc(field.description or '')}\n"


def client_settings() -> Iterator[str]:
    """Yield a section for each setting of a client; their descriptions follow them in the code."""
    (declared,) = ast.parse(inspect.cleandoc(inspect.getsource(ClientConfig))).body
    assert isinstance(declared, ast.ClassDef)
    described = {
        setting.target.id: inspect.cleandoc(text.value.value)
        for setting, text in zip(declared.body, declared.body[1:], strict=False)
        if isinstance(setting, ast.AnnAssign)
        and isinstance(setting.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
    for each in fields(ClientConfig):
        yield f"\n### `{each.name}`\n{_client_default(each)}\n{described[each.name]}\n"


def _client_default(setting: Field[object]) -> str:
    if setting.default is MISSING or setting.default in (None, ""):
        return ""
    return f"\nDefault `{setting.default}`.\n"


def page() -> str:
    """Return the page's text."""
    text = "".join((HEAD, *server_settings(), CLIENT, *client_settings(), ENVIRONMENT))
    # The descriptions are reStructuredText in the code.
    return re.sub(r":[a-z]+:`", "`", text.replace("``", "`"))


def main() -> int:
    """Write the page, and exit 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PAGE, help="default: the committed page")
    out: Path = parser.parse_args().out
    out.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
