"""Postgres for development and tests: system binaries or a wheel's, run by our own code."""
