"""kvstore-ctl doctor: checks of a store and of its host."""
