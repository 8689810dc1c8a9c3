"""What must not happen twice: effects (`effects`) and suspects (`suspects`), kept in Postgres.

Decision and failure table: infra/decisions/0004-ledger.md.
`rules` decides and `rows` writes; `calls` calls, or asks the target; `doubt` is for people.
"""
