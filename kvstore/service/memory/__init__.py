"""Memory of arenas: growth, fair shares between tenants, and reclaim."""
