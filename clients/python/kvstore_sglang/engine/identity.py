"""The identity of a model: a digest of everything that an engine's KV depends on, never a name."""

from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol

from kvstore_client import NamespaceIdentity, PageLayout
from kvstore_client.engines.canonical import UnidentifiableModel, canonical_json, framed
from kvstore_client.engines.model_folder import folder_digest, hub_snapshot
from kvstore_client.engines.setting_values import cut_name
from kvstore_sglang.engine.config_factors import config_factors
from kvstore_sglang.engine.rank_facts import RankFacts
from kvstore_sglang.engine.salts import RequestSalts

MARK: Final = b"kvstore_sglang model 1"
# Load formats that read the safetensors files of the model's folder.
SAFETENSORS_FORMATS: Final = frozenset({"auto", "safetensors", "fastsafetensors"})
# The load format with weights made up from a seed that never changes, each rank's by itself.
DUMMY: Final = "dummy"
ADVICE: Final = (
    "Set model_digest in linker_extra_config to a digest of the weights, such as sha256sum "
    "of their files prints; engines with other weights must have another"
)


class IdentitySettings(Protocol):
    """An operator's settings that are part of the identity; None or empty: SGLang's own."""

    @property
    def model_digest(self) -> str | None:
        """The digest in place of the weights'."""

    @property
    def salt(self) -> str:
        """The salt; engines of different salts share nothing."""

    @property
    def display_name(self) -> str:
        """The namespace's name for people."""


def engine_identity(
    facts: RankFacts, settings: IdentitySettings, layout: PageLayout
) -> NamespaceIdentity:
    """Returns the identity that ranks of engines must have in common to share pages.

    Its digest covers the weights (or ``settings.model_digest`` in their place), each setting
    that decides over KV, the rank and the number of ranks, and ``layout``. It is the same in each
    process that loads the same model, on any day, from any path.

    Takes from milliseconds to seconds. Raises ``UnidentifiableModel``, whose message says what to
    set, if a factor is unknown.
    """
    platform = [facts.version, facts.device_type, facts.device_name]
    parts = {
        "platform": canonical_json(platform, "platform"),
        "rank": canonical_json([facts.rank, facts.rank_count], "rank"),
        "weights": _weights(facts, settings),
        "layout": repr(layout).encode(),
        **config_factors(facts.settings, facts.hf_config),
    }
    named = [each for name, part in sorted(parts.items()) for each in (name.encode(), part)]
    return NamespaceIdentity(
        model_digest=sha256(framed(MARK, *named)).digest(),
        salt=RequestSalts(settings.salt).plain,
        display_name=settings.display_name or cut_name(facts.model_name),
    )


def _weights(facts: RankFacts, settings: IdentitySettings) -> bytes:
    if settings.model_digest is not None:
        return b"stated " + bytes.fromhex(settings.model_digest)
    stated = facts.settings["model.load_format"]
    load_format = str(getattr(stated, "value", stated))
    if load_format == DUMMY:
        return f"dummy {facts.rank_count}".encode()
    if load_format not in SAFETENSORS_FORMATS:
        raise UnidentifiableModel(f"--load-format {load_format} is not read by kvstore. {ADVICE}")
    try:
        model_path, revision, cache_dir = (
            facts.settings[f"model.{name}"] for name in ("model_path", "revision", "download_dir")
        )
        folder = Path(model_path)
        if not folder.is_dir():
            folder = hub_snapshot(model_path, revision, cache_dir)
        return b"folder " + folder_digest(folder)
    except (OSError, UnidentifiableModel) as error:
        raise UnidentifiableModel(f"{error}. {ADVICE}") from error
