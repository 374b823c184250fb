"""OpenAI's documents: complete answers, and chunks of streams."""

import time
import uuid
from typing import Any, Protocol

from inference_worker.http.choices import ChoiceDelta, Delta
from inference_worker.http.settings import ServedModel

Document = dict[str, Any]


class Documents(Protocol):
    """Writes the documents of one request."""

    def whole(self, choices: list[Delta], usage: Document) -> Document:
        """Returns the complete answers."""
        ...

    def first(self, index: int) -> Document | None:
        """Returns the chunk before a choice's first text, if there is one."""
        ...

    def chunk(self, choice: ChoiceDelta) -> Document:
        """Returns the chunk with a choice's next text."""
        ...

    def usage(self, usage: Document) -> Document:
        """Returns the last chunk, which has no choice."""
        ...


class _Headed:
    """The fields that all documents of a request share."""

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
        """Returns the complete answers."""
        written = [_completion(index, each) for index, each in enumerate(choices)]
        return self._document("text_completion", written, usage=usage)

    def first(self, index: int) -> None:
        """Returns None: a completion begins with its text."""
        del index

    def chunk(self, choice: ChoiceDelta) -> Document:
        """Returns the chunk with a choice's next text."""
        return self._document("text_completion", [_completion(*choice)])

    def usage(self, usage: Document) -> Document:
        """Returns the last chunk."""
        return self._document("text_completion", [], usage=usage)


class ChatDocuments(_Headed):
    """``chat.completion`` and ``chat.completion.chunk``."""

    def __init__(self, model: ServedModel) -> None:
        """Names the request."""
        super().__init__("chatcmpl", model)

    def whole(self, choices: list[Delta], usage: Document) -> Document:
        """Returns the complete answers."""
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
        """Returns the chunk that names the message's role."""
        return self._chunk(index, {"role": "assistant", "content": ""}, None)

    def chunk(self, choice: ChoiceDelta) -> Document:
        """Returns the chunk with a choice's next text."""
        text, reason = choice.delta
        return self._chunk(choice.number, {"content": text} if text else {}, reason)

    def usage(self, usage: Document) -> Document:
        """Returns the last chunk."""
        return self._document("chat.completion.chunk", [], usage=usage)

    def _chunk(self, index: int, delta: Document, reason: str | None) -> Document:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._document("chat.completion.chunk", [choice])


def _completion(index: int, delta: Delta) -> Document:
    text, reason = delta
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
