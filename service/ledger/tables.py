"""The tables of a ledger in SQL. `headrace usage` reads them by these names."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, DateTime, Double, Index, Integer, MetaData, Table, Text

__all__ = ["GENERATIONS", "METADATA", "PROCESSES", "SCHEMA"]

METADATA: Final = MetaData()
# UTC. PostgreSQL keeps the zone, SQLite a text without one.
_Moment = DateTime(timezone=True)

# One row: the version that wrote the tables.
SCHEMA: Final = Table("headrace_schema", METADATA, Column("version", Integer, primary_key=True, autoincrement=False))

# One row for every start of a service. `stopped_at`: in order, or found dead.
PROCESSES: Final = Table(
    "headrace_processes",
    METADATA,
    Column("process_id", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("pid_space", Text, nullable=False),
    Column("pid_mark", Text, nullable=False),
    Column("started_at", _Moment, nullable=False),
    Column("beat_at", _Moment, nullable=False),
    Column("stopped_at", _Moment),
    Column("lost", Integer),
)

# One row for every generation. No `ended_at`: it runs, or its process is gone.
GENERATIONS: Final = Table(
    "headrace_generations",
    METADATA,
    Column("generation_id", Text, primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("process_id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("end_user", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("priority", Text, nullable=False),
    Column("choices", Integer, nullable=False),
    Column("received_at", _Moment, nullable=False),
    Column("ended_at", _Moment),
    Column("outcome", Text),
    Column("reason", Text),
    Column("finish_reasons", Text),
    Column("prompt_tokens", Integer),
    Column("cached_prompt_tokens", Integer),
    Column("output_tokens", Integer),
    Column("reasoning_tokens", Integer),
    Column("queue_s", Double),
    Column("ttft_s", Double),
    Column("total_s", Double),
)
_is_open = GENERATIONS.c.ended_at.is_(None)
Index("headrace_generations_received", GENERATIONS.c.received_at)
Index("headrace_generations_tenant", GENERATIONS.c.tenant, GENERATIONS.c.received_at)
Index("headrace_generations_open", GENERATIONS.c.process_id, sqlite_where=_is_open, postgresql_where=_is_open)
