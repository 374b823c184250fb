"""The engine on a cluster of Valkey or Redis: slots, nodes, and calls to several of them."""
