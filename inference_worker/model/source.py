"""What a user may write after ``--model``, and the folder that it means."""

from pathlib import Path

from inference_worker.model.gemma import gemma_folder
from inference_worker.model.names import GEMMA, TINY
from inference_worker.model.tiny import TINY_MODELS, tiny_folder

__all__ = ["GEMMA", "TINY", "model_folder"]


def model_folder(source: str | Path) -> Path:
    """Gives the model folder of ``gemma``, ``tiny``, ``tiny-gemma3``, ``tiny-llama``, or a path.

    ``tiny`` is ``tiny-qwen3``.
    The named ones are made in the cache on first use, Gemma in about half a minute.
    Raises ``FileNotFoundError`` for a path that is no folder.
    """
    name = str(source)
    if name == GEMMA:
        return gemma_folder()
    if name == TINY:
        return tiny_folder()
    kind, _, rest = name.partition("-")
    if kind == TINY and rest in TINY_MODELS:
        return tiny_folder(rest)
    folder = Path(source)
    if not folder.is_dir():
        names = [GEMMA, TINY, *(f"{TINY}-{rest}" for rest in TINY_MODELS)]
        msg = f"{name} is no folder and none of {', '.join(names)}"
        raise FileNotFoundError(msg)
    return folder
