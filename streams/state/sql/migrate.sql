-- The migration runner's statements.

-- name: lock_migrations
-- Any fixed number will do; the statement time-out does not suit a long migration.
SELECT pg_advisory_xact_lock(4838211), set_config('statement_timeout', '0', true);

-- name: has_migrations
SELECT to_regclass('schema_migrations') IS NOT NULL AS yes;

-- name: create_migrations
CREATE TABLE IF NOT EXISTS schema_migrations (
    name        text        PRIMARY KEY,
    checksum    text        NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now()
);

-- name: find_migration
SELECT checksum, applied_at FROM schema_migrations WHERE name = %(name)s;

-- name: record_migration
INSERT INTO schema_migrations (name, checksum) VALUES (%(name)s, %(checksum)s);
