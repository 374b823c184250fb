"""The journal in memory that outlives the process: holds in a table, all else in a ring."""
