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

from kvstore.config.about import About, about
from kvstore.config.settings import Config
from kvstore_client import ClientConfig
from kvstore_client.config import MAX_CALL_TIMEOUT

PAGE = Path(__file__).resolve().parent / "configuration.md"
HEAD = """\
# Configuration

Written by `docs/settings.py` from the settings' own descriptions: do not edit.

For operators and authors of clients: every setting of the server and of a client. [How to configure](how-to-configure.md) has the steps.

## `kvstore-server`

A flag overrides the environment, the environment the file, and the file the default.
`--tier1-bytes 2GiB` is `KVSTORE_TIER1_BYTES=2GiB` in the environment, and `tier1_bytes = "2GiB"` in the TOML file that `--config-file` names.
An unknown setting or a wrong value ends the server with status 2 and a line that names it.
The files of [deploy/](../deploy/README.md) have examples.

Times are in seconds. Sizes are bytes, or have a unit: `512MiB`, `2GB`. [Sizing](sizing.md) says how many tokens fit.

### What is in force

`kvstore-server config` prints every setting with its value and the value's origin. It takes all flags of the server.

```console
$ .venv/bin/kvstore-server config --tier1-bytes 512MiB --runtime-dir /run/kvstore
config_file               -             default
runtime_dir               /run/kvstore  flag --runtime-dir
device                    cpu           default
tier1_bytes               512MiB        flag --tier1-bytes
tier1_reserve             all           default
extent_bytes              128MiB        default
...
```

`--json` also has the text of this page, `--toml` writes a file for `--config-file` with the same settings, and `--explain` shows one setting:

```console
$ .venv/bin/kvstore-server config --explain drain-grace
drain_grace

The longest wait of a stop for leases to end.
...
  value    10.0, from: default
  unit     seconds
  allowed  0 or more
  default  10.0
  set by   --drain-grace, KVSTORE_DRAIN_GRACE, drain_grace in the file
  counts   at SIGHUP
  look at  `drain_finished` in the log
```

`kvstore-server config check` says if a server would start with these settings. It also checks files of tenants and certificates, and the folder of tier 3. It ends with 0, or with 2 and a line that names the error.
It prints paths of files, and never their content.

```console
$ .venv/bin/kvstore-server config check --tier1-bytes 2GiB
kvstore-server: the settings can be used
```

### Changing them while it serves

At SIGHUP (`systemctl reload`) the server reads `config_file` and `tenants_file` again, with the flags and the environment of its start.

- Settings marked *counts at SIGHUP* below change. The log has `config_reloaded` with their names.
- Other settings that differ stay as they were. The log names them in `config_needs_restart`.
- A file with an error changes nothing: `config_not_read` or `tenants_not_read` says why.
- Without either file the log has `nothing_to_reload`.

### All settings

"""
CLIENT = """
## `kvstore_client.ClientConfig`

A program passes it as `Client(runtime_dir, ClientConfig(...))`. Times are in seconds.
"""
ENVIRONMENT = """
## Environment

| variable | read by | meaning |
| --- | --- | --- |
| `KVSTORE_RUNTIME_DIR` | server, clients, `kvstore-worker`, `kvstore-ctl` | folder of the sockets; default `$XDG_RUNTIME_DIR/kvstore`, else `/tmp/kvstore-UID` |
| `KVSTORE_` and a setting's name | server | that setting |
| `KVSTORE_ADDRESS`, `KVSTORE_TOKEN_FILE`, `KVSTORE_TOKEN`, `KVSTORE_TLS_CA`, `KVSTORE_CLIENT_CERT`, `KVSTORE_CLIENT_KEY` | `kvstore-ctl` | a store on another host, and the caller's credentials: [tenants.md](tenants.md#over-the-network) |
| `KVSTORE_CACHE` | `kvstore-worker` | folder of converted models; default `$XDG_CACHE_HOME/kvstore`, else `~/.cache/kvstore` |
| `KVSTORE_FAULT` | clients under test | a point at which the process kills or stops itself, see [clients](../clients/README.md#tests-of-your-own) |
"""


def overview() -> Iterator[str]:
    """Yields a table of the server's settings."""
    yield "| setting | default | counts |\n| --- | --- | --- |\n"
    for each in abouts():
        default = f"`{each.default}`" if each.default else ""
        yield f"| [`{each.name}`](#{each.name}) | {default} | {each.reload.when} |\n"


def server_settings() -> Iterator[str]:
    """Yields a section for each setting of the server."""
    for each in abouts():
        default = f"; default `{each.default}`" if each.default else ""
        yield f"\n### `{each.name}`\n\n`{each.flag}`, `{each.variable}`{default}\n\n"
        yield f"{inspect.cleandoc(each.description)}\n\n"
        yield f"- values: {'; '.join(filter(None, (each.values.unit, each.values.allowed)))}\n"
        yield f"- counts {each.reload.when}\n"
        yield f"- look at {each.shown.text()}\n"


def abouts() -> list[About]:
    """Returns the descriptions of the server's settings."""
    return [about(name, field) for name, field in Config.model_fields.items()]


def client_settings() -> Iterator[str]:
    """Yields a section for each setting of a client; their descriptions follow them in the code."""
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
        # As ClientConfig's own check has it.
        if each.type in (float, float | None):
            most = f", at most {MAX_CALL_TIMEOUT:g}" if each.name == "call_timeout" else ""
            yield f"\n- values: seconds; more than 0{most}\n"


def _client_default(setting: Field[object]) -> str:
    if setting.default is MISSING or setting.default in (None, ""):
        return ""
    return f"\nDefault `{setting.default}`.\n"


def page() -> str:
    """Returns the page's text."""
    described = "".join((*server_settings(), CLIENT, *client_settings()))
    # The descriptions are reStructuredText in the code.
    described = re.sub(r":[a-z]+:`", "`", described.replace("``", "`"))
    return "".join((HEAD, *overview(), described, ENVIRONMENT))


def main() -> int:
    """Writes the page, and returns 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PAGE, help="default: the committed page")
    out: Path = parser.parse_args().out
    out.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
