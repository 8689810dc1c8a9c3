-- How a shadow takes the place of `jobs`.

-- name: lock_rebuild
-- Any fixed number will do. Held by the session, so it ends with the process, however that ends.
SELECT pg_try_advisory_lock(4838212) AS mine;

-- name: jobs_table
-- Where `jobs` is, and whether we may replace it.
SELECT n.nspname AS schema, format('%%I.%%I', n.nspname, %(shadow)s::text) AS shadow,
    pg_has_role(c.relowner, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE') AS ours,
    pg_get_userbyid(c.relowner) AS owner
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = 'jobs'::regclass;

-- name: hanging_on_jobs
-- What refers to `jobs`, or is fixed to it, and would stay with the old table: views, foreign keys,
-- triggers, policies, publications. Its own indexes, defaults and checks are copied.
SELECT DISTINCT pg_describe_object(d.classid, d.objid, 0) AS object
FROM pg_depend AS d
LEFT JOIN pg_index AS i ON d.classid = 'pg_class'::regclass AND i.indexrelid = d.objid
LEFT JOIN pg_constraint AS k ON d.classid = 'pg_constraint'::regclass AND k.oid = d.objid
WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = 'jobs'::regclass
  AND d.deptype IN ('n', 'a') AND d.classid <> 'pg_attrdef'::regclass
  AND i.indexrelid IS NULL AND (k.oid IS NULL OR k.contype = 'f')
UNION
SELECT format('table %s by inheritance', inhrelid::regclass) FROM pg_inherits
WHERE inhparent = 'jobs'::regclass
ORDER BY object;

-- name: drop_shadow
DROP TABLE IF EXISTS {table};

-- name: create_shadow
CREATE TABLE {table} (LIKE jobs INCLUDING ALL);

-- name: lock_positions_table
-- Who is in the middle of a batch is waited for; the next one waits for us, before it has read where
-- the projection stands.
LOCK TABLE projection_offsets IN EXCLUSIVE MODE;

-- name: lock_jobs
-- Who reads is waited for, but not for long: others queue behind us.
SET LOCAL lock_timeout = '2s';
LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE;

-- name: carry_excused
-- States that compaction took, as it may: what `jobs` holds is all there is of them.
DELETE FROM {table} AS log USING unseen_jobs AS unseen, jobs AS held
WHERE unseen.excused AND log.trace_id = unseen.trace_id AND held.trace_id = log.trace_id
  AND log.seq < held.seq;
INSERT INTO {table} SELECT held.* FROM jobs AS held JOIN unseen_jobs AS unseen USING (trace_id)
WHERE unseen.excused
ON CONFLICT DO NOTHING;

-- name: unlike
-- Columns, checks and indexes that only one of the two tables has.
WITH sides AS (
    SELECT 'jobs'::regclass AS rel, 1 AS side UNION ALL SELECT %(shadow)s::text::regclass, 2
),
parts AS (
    SELECT side, format('column %%s %%s%%s%%s', attname, format_type(atttypid, atttypmod),
        CASE WHEN attnotnull THEN ' not null' END, ' ' || pg_get_expr(adbin, adrelid)) AS part
    FROM sides JOIN pg_attribute ON attrelid = rel AND attnum > 0 AND NOT attisdropped
    LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    UNION ALL
    SELECT side, 'check ' || conname || ' ' || pg_get_constraintdef(oid)
    FROM sides JOIN pg_constraint ON conrelid = rel AND contype = 'c'
    UNION ALL
    SELECT side, 'index' || substring(pg_get_indexdef(indexrelid) FROM ' USING .*')
    FROM sides JOIN pg_index ON indrelid = rel
)
SELECT part FROM parts GROUP BY part
HAVING count(*) FILTER (WHERE side = 1) <> count(*) FILTER (WHERE side = 2) ORDER BY part;

-- name: shadow_rights
-- Statements that give the shadow the owner, rights and storage parameters of `jobs`.
SELECT statement FROM (
    SELECT 1 AS n, format('ALTER TABLE %%s OWNER TO %%I', %(shadow)s::text, pg_get_userbyid(relowner))
        AS statement
    FROM pg_class WHERE oid = 'jobs'::regclass
    UNION ALL
    -- Default privileges may have given it some that `jobs` does not have.
    SELECT 2, format('REVOKE ALL ON TABLE %%s FROM %%s', %(shadow)s::text,
        CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END)
    FROM pg_class AS c, aclexplode(c.relacl) AS a
    WHERE c.oid = %(shadow)s::text::regclass AND a.grantee <> c.relowner
    UNION ALL
    SELECT 3, format('GRANT %%s%%s ON TABLE %%s TO %%s%%s', a.privilege_type, of_column, %(shadow)s::text,
        CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
        CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' END)
    FROM (
        SELECT relacl AS acl, relowner, NULL AS of_column
        FROM pg_class WHERE oid = 'jobs'::regclass
        UNION ALL
        SELECT attacl, relowner, format(' (%%I)', attname)
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
        WHERE attrelid = 'jobs'::regclass AND NOT attisdropped
    ) AS held, aclexplode(acl) AS a
    WHERE a.grantee <> held.relowner
    UNION ALL
    SELECT 4, format('ALTER TABLE %%s SET (%%s)', %(shadow)s::text, array_to_string(reloptions, ', '))
    FROM pg_class WHERE oid = 'jobs'::regclass AND reloptions IS NOT NULL
) AS statements ORDER BY n, statement;

-- name: index_renames
-- Statements that give the indexes of the shadow, and so its key, the names of those of `jobs`.
WITH indexes AS (
    SELECT indrelid, c.relname AS name, n.nspname AS schema, shape,
        row_number() OVER (PARTITION BY indrelid, shape ORDER BY indisprimary DESC, indexrelid) AS nth
    FROM pg_index
    JOIN pg_class AS c ON c.oid = indexrelid
    JOIN pg_namespace AS n ON n.oid = c.relnamespace,
    substring(pg_get_indexdef(indexrelid) FROM ' USING .*') AS shape
    WHERE indrelid IN ('jobs'::regclass, %(shadow)s::text::regclass)
)
SELECT format('ALTER INDEX %%I.%%I RENAME TO %%I', new.schema, new.name, old.name) AS statement
FROM indexes AS old JOIN indexes AS new USING (shape, nth)
WHERE old.indrelid = 'jobs'::regclass AND new.indrelid = %(shadow)s::text::regclass;

-- name: drop_jobs
DROP TABLE jobs;

-- name: rename_shadow
ALTER TABLE {table} RENAME TO jobs;
