"""The wire: every record that crosses a topic, as pydantic models and header names.

Nothing here imports a driver, so any program may read our topics with this package alone.
"""
