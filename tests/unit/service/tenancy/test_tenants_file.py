"""The tenants file: what it may say, and how it is refused."""

from hashlib import sha256

import pytest

from kvstore.core.values.limits import Quotas
from kvstore.core.values.requests import Identity
from kvstore.service.tenancy.tenants_file import TenantsFile, WrongTenants, parse_tenants

DIGEST = sha256(b"kvs_token").hexdigest()
KEY = "0123456789abcdefABCDEF" + "0" * 42
WHOLE = f"""
[default]
leases = 8
requests_per_second = 100

[tenants.alice]
uids = [1000, 1001]
token_sha256 = ["{DIGEST.upper()}"]
certificate_names = ["spiffe://example/alice", "Alice.Example"]
tier1_bytes = "2GiB"
share_bytes = 1048576
leases = 3
pins = 100
named_pins = 0
requests_per_second = 0.5

[tenants.operator]
admin = true

[tenants.uid-1002]
pins = 5
remote_key = "{KEY}"
"""


def test_a_file_says_who_is_who() -> None:
    """Uids, tokens and certificates lead to their tenants, and nothing else does."""
    tenants = parse_tenants(WHOLE.encode()).tenants
    alice = tenants.of_token("kvs_token")
    assert alice is not None
    assert alice.identity == Identity("alice")
    assert [tenants.of_uid(uid) for uid in (1000, 1001, 1003)] == [alice, alice, None]
    for name in ("spiffe://example/alice", "alice.example", "ALICE.example"):
        assert tenants.of_certificate([name]) == [alice]
    assert tenants.of_token(DIGEST) is None
    assert tenants.of_token("") is None


def test_a_file_says_what_each_may_have() -> None:
    """A tenant's quota wins over the default's, which counts for those not named too."""
    quotas = parse_tenants(WHOLE.encode()).quotas
    assert quotas.of("alice") == Quotas(
        tier1_bytes=2 << 30,
        share_bytes=1 << 20,
        leases=3,
        pins=100,
        named_pins=0,
        requests_per_second=0.5,
    )
    assert quotas.of("operator") == quotas.of("uid-7") == Quotas(leases=8, requests_per_second=100)
    assert quotas.of("uid-1002") == Quotas(leases=8, requests_per_second=100, pins=5)


def test_every_quota_can_be_set() -> None:
    """The file has a key for each quota of a tenant."""
    values = dict.fromkeys(Quotas.__dataclass_fields__, 1)
    text = "[tenants.a]\n" + "\n".join(f"{name} = {value}" for name, value in values.items())
    assert parse_tenants(text.encode()).quotas.of("a") == Quotas(**values)


def test_a_uid_s_own_tenant_can_be_named() -> None:
    """A table of the name that a uid has anyway is that uid's."""
    tenant = parse_tenants(b"[tenants.uid-5]\nadmin = true").tenants.of_uid(5)
    assert tenant is not None
    assert tenant.identity == Identity("uid-5", admin=True)


def test_no_file_and_an_empty_one_name_nobody() -> None:
    """Without anybody named all have the same quotas, and nothing but a uid is known."""
    for file in (TenantsFile.empty(), parse_tenants(b"")):
        assert (file.tenants.has_tokens, file.tenants.has_certificate_names) == (False, False)
        assert file.quotas.of("uid-1") == Quotas()


def test_a_file_has_the_keys_of_its_tenants() -> None:
    """A tenant without one has none, and the file's text does not show the others'."""
    known = parse_tenants(WHOLE.encode())
    assert known.remote_keys == {"uid-1002": bytes.fromhex(KEY)}
    assert KEY not in repr(known)
    assert TenantsFile.empty().remote_keys == {}


def test_a_file_has_the_keys_of_those_who_follow_a_tenant() -> None:
    """They are public keys, in the order of the file."""
    keys = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", "x" * 40
    text = f"[tenants.a]\nkv_events_keys = {list(keys)}\n[tenants.b]\n"
    assert parse_tenants(text.encode()).event_keys == {
        "a": tuple(each.encode() for each in keys),
        "b": (),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tenants.a\nx = 1", "line 1"),
        ("\xff", "invalid"),
        ("[tenant.a]", "tenant: no such key"),
        ("[tenants.a]\nuid = 1", "tenants.a.uid: no such key"),
        ("[default]\nuids = [1]", "default.uids: no such key"),
        ("[tenants.a]\nuids = [-1]", "tenants.a.uids.0: "),
        ("[tenants.a]\nuids = [4294967295]", "tenants.a.uids.0: "),
        ('[tenants.a]\nuids = ["1"]', "tenants.a.uids.0: "),
        ('[tenants.a]\nadmin = "yes"', "tenants.a.admin: "),
        ('[tenants.a]\ntier1_bytes = "much"', "tenants.a.tier1_bytes: "),
        ("[tenants.a]\nleases = -1", "tenants.a: leases has to be zero or more"),
        ("[default]\nrequests_per_second = 0", "default: requests_per_second has to be"),
        ('[tenants.a]\ncertificate_names = [""]', "tenants.a.certificate_names.0: "),
        ('[tenants.a]\ncertificate_names = ["a b"]', "tenants.a.certificate_names.0: "),
        ('[tenants."a b"]', "tenants.a b: a tenant's name"),
        ('[tenants."a\\u001b"]', "a tenant's name"),
        ("[tenants.uid-x]", "a name like uid-1000"),
        ('[tenants.a]\nremote_key = "00"', "tenants.a.remote_key: has to be 32 random bytes"),
        (
            '[tenants.a]\nkv_events_keys = ["x"]',
            "tenants.a.kv_events_keys.0: has to be a public",
        ),
        ("tenants = " + "[" * 10_000, "recursion"),
        ("[tenants.uid-5]\nuids = [6]", "tenants.uid-5.uids: this is the tenant of uid 5 alone"),
        ("[tenants.a]\nuids = [5]\n[tenants.uid-5]", "the uid 5 is of two tenants, a and uid-5"),
        (
            '[tenants.a]\ncertificate_names = ["X"]\n[tenants.b]\ncertificate_names = ["x"]',
            "the certificate's name 'x' is of two tenants, a and b",
        ),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(text: str, said: str) -> None:
    """An error is named by its line or its key."""
    with pytest.raises(WrongTenants) as caught:
        parse_tenants(text.encode("latin-1"))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        '[tenants.a]\ntoken_sha256 = ["kvs_recognisable"]',
        f'[tenants.a]\ntoken_sha256 = ["{DIGEST}"]\n[tenants.b]\ntoken_sha256 = ["{DIGEST}"]',
        '[tenants.a]\ntoken_sha256 = "kvs_recognisable"',
        '[tenants.a]\ntokens = ["kvs_recognisable"]',
        '[tenants.a]\nremote_key = "kvs_recognisable_token"',
    ],
)
def test_a_refusal_repeats_no_token(text: str) -> None:
    """A token that stands where its digest should, or a digest, is not shown to anybody."""
    with pytest.raises(WrongTenants, match=r"token|remote_key") as caught:
        parse_tenants(text.encode())
    assert "recognisable" not in str(caught.value)
    assert DIGEST not in str(caught.value)
