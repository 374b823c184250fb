"""Commands of kvstore-ctl, one subject a file."""
