"""Page stores for tests: one in memory that fails at will, and rigs for contract tests."""
