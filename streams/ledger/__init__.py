"""What must not happen twice: effects (`effects`) and suspects (`suspects`), kept in Postgres.

Decision and failure table: infra/decisions/0004-ledger.md.
"""
