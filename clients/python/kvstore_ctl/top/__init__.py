"""kvstore-ctl top: the activity of a store, refreshed."""
