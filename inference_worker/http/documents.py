"""OpenAI's documents: answers whole, and in chunks."""

import time
import uuid
from typing import Any, Protocol

from inference_worker.http.choices import ChoiceDelta, Delta
from inference_worker.http.settings import ServedModel

Document = dict[str, Any]


class Documents(Protocol):
    """How one request's answers are written."""

    def whole(self, choices: list[Delta], usage: Document) -> Document:
        """Writes all of the answers."""
        ...

    def first(self, index: int) -> Document | None:
        """Writes what comes before a choice's first text, if anything."""
        ...

    def chunk(self, choice: ChoiceDelta) -> Document:
        """Writes what a choice says next."""
        ...

    def usage(self, usage: Document) -> Document:
        """Writes the last chunk, which has no choice."""
        ...


class _Headed:
    """What all documents of a request have in common."""

    def __init__(self, prefix: str, model: ServedModel) -> None:
        """Names the request."""
        self._head = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model.name,
        }

    def _document(self, kind: str, choices: list[Document], **more: object) -> Document:
        return {**self._head, "object": kind, "choices": choices, **more}


class CompletionDocuments(_Headed):
    """``text_completion``."""

    def __init__(self, model: ServedModel) -> None:
        """Names the request."""
        super().__init__("cmpl", model)

    def whole(self, choices: list[Delta], usage: Document) -> Document:
        """Writes all of the answers."""
        written = [_completion(index, each) for index, each in enumerate(choices)]
        return self._document("text_completion", written, usage=usage)

    def first(self, index: int) -> None:
        """Nothing comes before the text."""
        del index

    def chunk(self, choice: ChoiceDelta) -> Document:
        """Writes what a choice says next."""
        return self._document("text_completion", [_completion(*choice)])

    def usage(self, usage: Document) -> Document:
        """Writes the last chunk."""
        return self._document("text_completion", [], usage=usage)


class ChatDocuments(_Headed):
    """``chat.completion`` and ``chat.completion.chunk``."""

    def __init__(self, model: ServedModel) -> None:
        """Names the request."""
        super().__init__("chatcmpl", model)

    def whole(self, choices: list[Delta], usage: Document) -> Document:
        """Writes all of the answers."""
        written = [
            {
                "index": index,
                "message": {"role": "assistant", "content": each.text, "refusal": None},
                "logprobs": None,
                "finish_reason": each.finish_reason,
            }
            for index, each in enumerate(choices)
        ]
        return self._document("chat.completion", written, usage=usage)

    def first(self, index: int) -> Document:
        """Says whose message begins."""
        return self._chunk(index, {"role": "assistant", "content": ""}, None)

    def chunk(self, choice: ChoiceDelta) -> Document:
        """Writes what a choice says next."""
        text, reason = choice.delta
        return self._chunk(choice.number, {"content": text} if text else {}, reason)

    def usage(self, usage: Document) -> Document:
        """Writes the last chunk."""
        return self._document("chat.completion.chunk", [], usage=usage)

    def _chunk(self, index: int, delta: Document, reason: str | None) -> Document:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._document("chat.completion.chunk", [choice])


def _completion(index: int, delta: Delta) -> Document:
    text, reason = delta
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
