"""kvstore-ctl: the command line of operators."""
