"""The settings of the remote tier: what is refused, and what applies where nothing is said."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from kvstore.config.loading import load_config, resolve, settings_error
from kvstore.config.settings import REMOTE_EXTRAS, Config
from kvstore.config.show import as_json, as_table, as_toml

pytestmark = pytest.mark.usefixtures("no_settings_around")
URL = "valkeys://cache.example:6379"
KEY = ("--remote-key-file", "/run/secrets/kvstore.key")
TRUST = "--remote-trust-uids"


def error_of(*flags: str) -> str:
    """Returns the one line about settings that are refused."""
    with pytest.raises(ValidationError) as raised:
        load_config(flags)
    return settings_error(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "valkeys://cache",
        "valkeys+cluster://a:1,b:2",
        "valkeys+sentinel://a:1,b:2/main",
        "valkey+unix:///run/valkey.sock",
        "file:///mnt/shared@home",
        "s3://bucket/prefix?endpoint=https://s3.example",
    ],
)
def test_an_address_may_have_any_form(url: str) -> None:
    """The engine of its scheme reads the rest."""
    assert load_config(["--remote-url", url, *KEY, TRUST]).remote_url == url


@pytest.mark.parametrize(
    "url", ["valkeys://user:hunter2@cache", "valkeys://:hunter2@cache", "s3://id:hunter2@bucket"]
)
@pytest.mark.parametrize("place", ["flag", "environment", "file"])
def test_a_password_in_an_address_is_refused_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, place: str
) -> None:
    """The log does not have the password, wherever the address came from."""
    flags: list[str] = []
    if place == "flag":
        flags = ["--remote-url", url]
    elif place == "environment":
        monkeypatch.setenv("KVSTORE_REMOTE_URL", url)
    else:
        file = tmp_path / "kvstore.toml"
        file.write_text(f'remote_url = "{url}"\n', encoding="utf-8")
        flags = ["--config-file", str(file)]
    error = error_of(*flags, *KEY, TRUST)
    assert "remote_credential_file" in error
    assert "hunter2" not in error


@pytest.mark.parametrize(
    "url", ["", "cache", "://cache", "valkeys://", "a\nb://c", "s3://" + "x" * 2048]
)
def test_what_is_no_address_is_refused_with_the_forms(url: str) -> None:
    """The error shows how an address is written."""
    assert "valkeys://HOST:PORT" in error_of(f"--remote-url={url}", *KEY, TRUST)


def test_a_key_is_required_and_the_error_says_how_to_make_one() -> None:
    """Nothing goes out unsealed."""
    assert "head -c 32 /dev/urandom" in error_of("--remote-url", URL, TRUST)


def test_a_bare_uid_is_no_tenant_of_several_hosts() -> None:
    """Without a tenants file the operator has to say that uids are the same everywhere."""
    assert "--remote-trust-uids" in error_of("--remote-url", URL, *KEY)
    with_file = ["--remote-url", URL, *KEY, "--tenants-file", "/etc/kvstore/tenants.toml"]
    assert not load_config(with_file).remote_trust_uids


@pytest.mark.parametrize("name", REMOTE_EXTRAS)
def test_a_setting_of_no_tier_is_refused(name: str) -> None:
    """A forgotten address is seen at the start."""
    flag = f"--{name.replace('_', '-')}"
    values = {"remote_write": "off", "remote_replicas": "1"}
    if Config.model_fields[name].annotation is not bool:
        flag += f"={values.get(name, 'value')}"
    assert f"{name} without remote_url" in error_of(flag)


def test_authorities_are_for_tls() -> None:
    """A file that nothing would read is refused."""
    flags = ("--remote-url", "file:///mnt/x", *KEY, TRUST, "--remote-ca-file", "/ca.pem")
    assert "remote_ca_file is for valkeys://" in error_of(*flags)


@pytest.mark.parametrize(
    ("flags", "policy"),
    [
        ([], None),
        (["--remote-url", URL, *KEY, TRUST], "through"),
        (["--remote-url", "s3://bucket", *KEY, TRUST], "second-touch"),
        (["--remote-url", "s3://bucket", *KEY, TRUST, "--remote-write", "through"], "through"),
        (["--remote-url", URL, *KEY, TRUST, "--remote-write", "off"], "off"),
    ],
)
def test_writes_go_through_except_to_s3(flags: list[str], policy: str | None) -> None:
    """Each write to S3 costs, so a page has to come back first."""
    config = load_config(flags)
    assert config.remote_write_in_force == config.in_force()["remote_write"] == policy


def test_the_folder_of_removals_outlives_the_runtime_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the setting, else beside the slab, else the unit's, else the user's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)

    def folder(*flags: str) -> Path:
        return load_config(["--remote-url", URL, *KEY, TRUST, *flags]).remote_state_folder

    slab = ["--tier3-path", "/disk/slab", "--tier3-bytes", "1GiB"]
    assert folder("--remote-state-dir", "/x", *slab) == Path("/x")
    assert folder(*slab) == Path("/disk/slab.remote")
    one, other = (folder("--runtime-dir", f"/run/{each}") for each in ("one", "other"))
    assert one != other
    assert one.parent == other.parent == tmp_path / "state" / "kvstore"
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/kvstore:/var/lib/more")
    assert folder() == Path("/var/lib/kvstore/remote")


def test_the_folder_of_a_user_is_in_their_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variables of the desktop it is where they would say."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    state = load_config(["--remote-url", URL, *KEY, TRUST]).remote_state_folder
    assert state.parent == Path("/home/someone/.local/state/kvstore")


def test_what_is_in_force_is_shown_without_a_secret(tmp_path: Path) -> None:
    """The table, JSON and TOML have the paths of secrets, and never their content."""
    key = tmp_path / "key"
    key.write_bytes(b"0123456789abcdef0123456789abcdef")
    flags = ["--remote-url", URL, "--remote-key-file", str(key), TRUST, "--remote-ttl", "60"]
    resolved = resolve(flags)
    shown = as_table(resolved) + as_json(resolved) + as_toml(resolved)
    assert "0123456789abcdef" not in shown
    assert str(key) in shown
    assert json.loads(as_json(resolved))["remote_write"]["in_force"] == "through"
    file = tmp_path / "kvstore.toml"
    file.write_text(as_toml(resolved), encoding="utf-8")
    again = load_config(["--config-file", str(file)])
    assert {name: getattr(again, name) for name in Config.model_fields if "remote" in name} == {
        name: getattr(resolved.config, name) for name in Config.model_fields if "remote" in name
    }


@pytest.mark.parametrize("wrong", ["two words", "x" * 129, "tab\t"])
def test_a_producer_is_one_word(wrong: str) -> None:
    """It is compared byte for byte on other hosts."""
    flags = ("--remote-url", URL, *KEY, TRUST, f"--remote-producer={wrong}")
    assert "128 printable characters" in error_of(*flags)
