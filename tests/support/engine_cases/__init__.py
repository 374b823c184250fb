"""Parts of the cases with real engines, whatever the engine: prompts, models, stores, the table."""
