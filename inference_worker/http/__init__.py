"""OpenAI's API over an engine, wherever that runs. Nothing here needs torch."""
