"""Loads: which pages a call brings nearer, from where, and for how long it waits for them."""
