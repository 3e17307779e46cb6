"""The shared store: PostgreSQL through psycopg 3, payloads as bytea, a batch as one statement."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from karat.errors import MissingDependency, StoreRefused
from karat.store.backend import SCHEMA, Row
from karat.store.sql import SqlBackend, as_bytes

if TYPE_CHECKING:
    import psycopg


def _indexed(column: str) -> str:
    # An index entry of PostgreSQL is at most 2,704 bytes long; names and units may be longer.
    return f"(CASE WHEN length({column}) > 1000 THEN sha256({column}) ELSE {column} END)"


TABLES = [
    "CREATE TABLE karat_schema (version BIGINT NOT NULL)",
    """CREATE TABLE karat_headers (
        number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind TEXT NOT NULL, id TEXT NOT NULL UNIQUE,
        configuration TEXT NOT NULL, created DOUBLE PRECISION NOT NULL, finished DOUBLE PRECISION,
        payload BYTEA NOT NULL, owner TEXT, host TEXT, process BIGINT, process_started DOUBLE PRECISION,
        since DOUBLE PRECISION, heartbeat DOUBLE PRECISION)""",
    "CREATE INDEX karat_headers_configuration ON karat_headers (kind, configuration)",
    "CREATE TABLE karat_links (child TEXT NOT NULL, parent TEXT NOT NULL, PRIMARY KEY (child, parent))",
    "CREATE INDEX karat_links_parent ON karat_links (parent)",
    "CREATE TABLE karat_names (name BYTEA NOT NULL, version BIGINT NOT NULL, dataset TEXT NOT NULL)",
    f"CREATE UNIQUE INDEX karat_names_version ON karat_names ({_indexed('name')}, version)",
    f"CREATE UNIQUE INDEX karat_names_dataset ON karat_names (dataset, {_indexed('name')})",
    """CREATE TABLE karat_rows (
        parent BIGINT NOT NULL, position BIGINT NOT NULL, item BYTEA NOT NULL, try_number BIGINT NOT NULL,
        status SMALLINT NOT NULL, reuse BYTEA, payload BYTEA NOT NULL)""",
    "CREATE UNIQUE INDEX karat_rows_identity ON karat_rows"
    f" (parent, position, {_indexed('item')}, try_number)",
    "CREATE INDEX karat_rows_reuse ON karat_rows (reuse) WHERE reuse IS NOT NULL",
]
"""The tables of the newest schema."""

UPGRADES: dict[int, list[str]] = {}
"""Schema n → the statements that make it n + 1."""

_TABLES_LOCK, _HEADERS_LOCK = 0x6B61726174, 0x6B61726175
"""Advisory locks: one process at a time makes or upgrades the tables; one adds, deletes or names headers."""

CONNECT_SECONDS = 10

APPEND = (
    "WITH header AS (SELECT number FROM karat_headers WHERE number = %s FOR KEY SHARE)"
    " INSERT INTO karat_rows SELECT header.number, batch.* FROM header, unnest(%b::bigint[], %b::bytea[],"
    " %b::bigint[], %b::smallint[], %b::bytea[], %b::bytea[]) AS batch ON CONFLICT DO NOTHING"
)
"""A batch as one statement, which is a transaction and a round trip, and holds the header against deletion."""

_identity = itemgetter(0, 1, 2)


class PostgresBackend(SqlBackend):
    """A PostgreSQL database; its tables are named `karat_…` and live in the first schema of the search path."""

    def __init__(self, url: str) -> None:
        super().__init__()
        try:
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
        except ImportError as error:
            raise MissingDependency("psycopg", "postgres", "a PostgreSQL store") from error
        self._psycopg = psycopg
        self._failures = (psycopg.Error,)
        self.url = without_password(url)
        try:
            defaults: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, "application_name": "karat"}
            self._where = {**defaults, **conninfo_to_dict(url), "client_encoding": "utf8"}
        except psycopg.Error:
            # What libpq says of a URL it cannot read quotes the URL, and with it perhaps the password.
            raise StoreRefused(
                f"{self.url} cannot be read as a URL: write postgresql://user:password@host:5432/database"
            ) from None
        try:
            self._connection = self._connect()
        except psycopg.Error as error:
            raise StoreRefused(f"no connection to {self.url}: {self._reason(error)}") from None
        self._is_open = True
        try:
            self._prepare()
        except BaseException as error:
            self.close()
            if isinstance(error.__cause__, psycopg.ProgrammingError):  # no right to, no such schema
                raise StoreRefused(
                    f"{self.url} cannot be used as a store: {self._reason(error.__cause__)}"
                ) from error
            raise

    def _connect(self) -> psycopg.Connection[Any]:
        return self._psycopg.connect(**self._where, autocommit=True)

    def _prepare(self) -> None:
        with self._transaction() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_TABLES_LOCK,))
            version = self._version(cursor)
            if version > SCHEMA:
                raise StoreRefused(
                    f"{self.url} was made by a newer karat (schema {version}, this one knows {SCHEMA}):"
                    " upgrade karat"
                )
            for statement in TABLES if version == 0 else ():
                cursor.execute(statement)
            for old in range(version or SCHEMA, SCHEMA):
                for statement in UPGRADES[old]:
                    cursor.execute(statement)
            if version == 0:
                cursor.execute("INSERT INTO karat_schema VALUES (%s)", (SCHEMA,))
            elif version < SCHEMA:
                cursor.execute("UPDATE karat_schema SET version = %s", (SCHEMA,))

    def _version(self, cursor: Any) -> int:
        cursor.execute("SELECT to_regclass('karat_schema')")
        if cursor.fetchone()[0] is None:
            return 0
        cursor.execute("SELECT version FROM karat_schema")
        found = cursor.fetchone()
        if found is None:
            raise StoreRefused(
                f"the table karat_schema in {self.url} is empty: restore it, or use another database"
            )
        return int(found[0])

    def _begin(self) -> Any:
        return self._execute("BEGIN ISOLATION LEVEL READ COMMITTED")

    def _execute(self, statement: str, parameters: Sequence[Any] = (), *, binary: bool = False) -> Any:
        """A statement outside any transaction, made again where the server was restarted since the last one.

        Only statements that may be made twice come here: BEGIN, queries, and appending, which is first come
        first served.
        """
        try:
            return self._fresh().execute(statement, parameters, binary=binary)
        except self._psycopg.OperationalError:
            if not self._connection.closed:
                raise
        return self._fresh().execute(statement, parameters, binary=binary)

    def _rollback(self) -> None:
        try:
            self._connection.rollback()
        except self._psycopg.Error:
            self._connection.close()  # the error that led here is the one to tell

    def _fetch(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        rows: list[Any] = self._execute(sql, parameters, binary=True).fetchall()
        return rows

    def _fresh(self) -> Any:
        """The connection, outside any transaction; made again if the server closed it."""
        if not self._is_open:
            raise self._psycopg.InterfaceError("it was closed")
        if self._connection.closed:
            self._connection = self._connect()
        elif self._connection.info.transaction_status != self._psycopg.pq.TransactionStatus.IDLE:
            self._rollback()  # an interrupt came just as the last one was to be ended
            return self._fresh()
        return self._connection

    def _sql(self, sql: str) -> str:
        return sql.replace("?", "%s")

    def _one_at_a_time(self, cursor: Any) -> None:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_HEADERS_LOCK,))

    def append(self, parent: int, rows: Sequence[Row]) -> int:
        if not rows:
            return 0
        with self._lock:
            try:
                new = int(self._execute(APPEND, columns(parent, rows)).rowcount)
            except self._failures as error:
                raise self._not_written(error) from error
        if new == 0 and self.header(parent) is None:
            raise self._removed()
        return new

    def _reason(self, error: Exception) -> str:
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        password = self._where.get("password")
        return text.replace(password, "***") if password else text

    def now(self) -> float:
        return float(self._read("SELECT extract(epoch FROM clock_timestamp())::float8")[0][0])

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            self._connection.close()


def columns(parent: int, rows: Sequence[Row]) -> tuple[Any, ...]:
    """A batch as APPEND takes it: sorted, so that two with the same rows cannot wait for each other."""
    positions, items, *others = zip(*sorted(rows, key=_identity), strict=True)
    return parent, list(positions), [as_bytes(item) for item in items], *map(list, others)


def without_password(url: str) -> str:
    """A URL as it may be shown: whatever could be a password is starred."""
    scheme, _, rest = url.partition("://")
    credentials, at, place = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    place, question, query = place.partition("?")
    options = "&".join(re.sub(r"(password)=.*", r"\1=***", option) for option in query.split("&"))
    return f"{scheme}://{user}{colon and ':***'}{at}{place}{question}{options}"
