"""``model.generate`` starts from the cached prefix of the prompt: run it twice.

The arguments are a model, by its folder or its name at the hub, and the folder of a store, by
default that of ``kvstore-server``.
"""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

from kvstore_transformers import PrefixStore

SYSTEM = "You answer questions about caches, briefly. " * 20
QUESTIONS = ("What is a cache?", "Why is a cache fast?")


def main(name: str, runtime_dir: str | None) -> None:
    """Answers two questions behind the same system prompt."""
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name)

    with PrefixStore(model, runtime_dir) as store:
        for question in QUESTIONS:
            inputs = tokenizer(SYSTEM + question, return_tensors="pt")
            with store.prompt(**inputs) as prompt:
                output = model.generate(**prompt, max_new_tokens=20, do_sample=False)
            length = inputs["input_ids"].shape[1]
            print(f"{question} {tokenizer.decode(output[0, length:])!r}")
            print(f"  {prompt.cached_token_count} of {length} tokens were cached")
            if prompt.failure is not None:
                print(f"  for {type(prompt.failure).__name__}: {prompt.failure}")


if __name__ == "__main__":
    if len(sys.argv) < 2:  # noqa: PLR2004 - its own name, and the model
        sys.exit("give a model: its folder, or its name at the hub")
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)  # noqa: PLR2004
