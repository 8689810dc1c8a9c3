"""OpenTelemetry for development: the collector of the compose file, and a receiver that counts."""
