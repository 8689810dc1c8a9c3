"""Truth in Postgres: the life of a job as a table, the projection of `job-state`, its queries."""
