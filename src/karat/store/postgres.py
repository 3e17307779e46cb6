"""The shared store: PostgreSQL through psycopg 3, payloads as bytea, a batch as one statement."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv6Address
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote
from zlib import crc32

from karat.errors import MissingDependency, StoreError, StoreRefused, wording
from karat.redaction import Redactor
from karat.store.backend import SCHEMA, ItemKeys, NoStoreYet, StoredRow, TextPattern, checksum
from karat.store.columns import pack
from karat.store.sql import SqlBackend, has_time_limit, like_pattern

T = TypeVar("T")

if TYPE_CHECKING:
    import psycopg


def _indexed(column: str) -> str:
    # An index entry of PostgreSQL is at most 2,704 bytes long; names and units may be longer.
    return f"(CASE WHEN length({column}) > 1000 THEN sha256({column}) ELSE {column} END)"


_COLUMN_TABLES = [
    """CREATE TABLE karat_columns (
        number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, parent BIGINT NOT NULL, records BIGINT NOT NULL,
        payload BYTEA NOT NULL, checksum BIGINT NOT NULL)""",
    # Compressing segments costs the writer more than it saves.
    "ALTER TABLE karat_columns ALTER COLUMN payload SET STORAGE EXTERNAL",
    "CREATE INDEX karat_columns_parent ON karat_columns (parent, number, records)",
]

TABLES = [
    "CREATE TABLE karat_schema (version BIGINT NOT NULL)",
    """CREATE TABLE karat_headers (
        number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind TEXT NOT NULL, id TEXT NOT NULL UNIQUE,
        configuration TEXT NOT NULL, created DOUBLE PRECISION NOT NULL, finished DOUBLE PRECISION,
        payload BYTEA NOT NULL, owner TEXT, host TEXT, process BIGINT, process_started DOUBLE PRECISION,
        since DOUBLE PRECISION, heartbeat DOUBLE PRECISION, checksum BIGINT, columns SMALLINT)""",
    "CREATE INDEX karat_headers_configuration ON karat_headers (kind, configuration)",
    "CREATE TABLE karat_links (child TEXT NOT NULL, parent TEXT NOT NULL, PRIMARY KEY (child, parent))",
    "CREATE INDEX karat_links_parent ON karat_links (parent)",
    "CREATE TABLE karat_names (name BYTEA NOT NULL, version BIGINT NOT NULL, dataset TEXT NOT NULL)",
    f"CREATE UNIQUE INDEX karat_names_version ON karat_names ({_indexed('name')}, version)",
    f"CREATE UNIQUE INDEX karat_names_dataset ON karat_names (dataset, {_indexed('name')})",
    """CREATE TABLE karat_rows (
        parent BIGINT NOT NULL, position BIGINT NOT NULL, item BYTEA NOT NULL, try_number BIGINT NOT NULL,
        status SMALLINT NOT NULL, reuse BYTEA, payload BYTEA NOT NULL, checksum BIGINT)""",
    "CREATE UNIQUE INDEX karat_rows_identity ON karat_rows"
    f" (parent, position, {_indexed('item')}, try_number)",
    "CREATE INDEX karat_rows_reuse ON karat_rows (reuse) WHERE reuse IS NOT NULL",
    *_COLUMN_TABLES,
]
"""The tables of the newest schema."""

UPGRADES: dict[int, list[str]] = {
    # Records of schema 1 stay without a checksum: to compute one now would confirm damage that is there already.
    1: [
        "ALTER TABLE karat_headers ADD COLUMN checksum BIGINT",
        "ALTER TABLE karat_rows ADD COLUMN checksum BIGINT",
    ],
    # Headers of schema 2 stay without columns: they are built from the records when they are first needed.
    2: ["ALTER TABLE karat_headers ADD COLUMN columns SMALLINT", *_COLUMN_TABLES],
}
"""Schema n → the statements that make it n + 1."""

_TABLES_LOCK, _HEADERS_LOCK = 0x6B61726174, 0x6B61726175
"""Advisory locks: one process at a time makes or upgrades the tables; one adds, deletes or names headers."""

CONNECT_SECONDS = 10

STATEMENT_MILLISECONDS = 30_000
"""How long a query of a reader with a time limit may take."""

LOST_SECONDS = 60.0
"""How long a server that was there and is lost is waited for."""
FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0

APPEND = (
    "WITH header AS (SELECT number FROM karat_headers WHERE number = %s AND (%s::text IS NULL OR owner = %s)"
    " FOR SHARE),"
    " segment AS (INSERT INTO karat_columns (parent, records, payload, checksum)"
    " SELECT number, %s::bigint, %b::bytea, %s::bigint FROM header WHERE %s)"
    " INSERT INTO karat_rows SELECT header.number, batch.* FROM header, unnest(%b::bigint[], %b::bytea[],"
    " %b::bigint[], %b::smallint[], %b::bytea[], %b::bytea[], %b::bigint[]) AS batch ON CONFLICT DO NOTHING"
)
"""A batch as one statement, which is a transaction and a round trip. FOR SHARE: until it is committed the header can
neither be deleted nor taken over. The segment of a batch that is appended again, because the server was lost after
the commit, says the same twice."""

_identity = itemgetter(0, 1, 2)


class PostgresBackend(SqlBackend):
    """A PostgreSQL database; its tables are named `karat_…` and live in the first schema of the search path."""

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        super().__init__()
        self.read_only = read_only
        try:
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
        except ImportError as error:
            raise MissingDependency("psycopg", "postgres", "a PostgreSQL store") from error
        self._psycopg = psycopg
        self._failures = (psycopg.Error,)
        self.url = without_password(url)
        self._is_open = False
        self._limited: Any = None
        """The connection that has a time limit."""
        try:
            defaults: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, "application_name": "karat"}
            self._where = {**defaults, **conninfo_to_dict(url), "client_encoding": "utf8"}
            self._redactor = Redactor(passwords_of(self._where), shortest=1)
            _refuse_misread(self._where)
        except (psycopg.Error, ValueError):
            # libpq's message about an invalid URL quotes the URL, which may contain the password.
            raise StoreRefused(
                f"{self.url} cannot be read as a URL: write postgresql://user:password@host:5432/database, with"
                " special characters of the password percent-encoded (@ as %40)"
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
        connection = self._psycopg.connect(**self._where, autocommit=True)
        if self.read_only:
            connection.execute("SET default_transaction_read_only = on")
        return connection

    def _prepare(self) -> None:
        if self.read_only:
            self._prepare_to_read()
            return
        self._write(self._make_tables)

    def _make_tables(self, cursor: Any) -> None:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_TABLES_LOCK,))
        version = self._version(cursor)
        self._refuse_newer(version)
        for statement in TABLES if version == 0 else ():
            cursor.execute(statement)
        for old in range(version or SCHEMA, SCHEMA):
            for statement in UPGRADES[old]:
                cursor.execute(statement)
        if version == 0:
            cursor.execute("INSERT INTO karat_schema VALUES (%s)", (SCHEMA,))
        elif version < SCHEMA:
            cursor.execute("UPDATE karat_schema SET version = %s", (SCHEMA,))

    def _prepare_to_read(self) -> None:
        version = self._write(self._version)
        if version == 0:
            raise NoStoreYet(
                f"there is no store in {self.url}: {wording('karat run', 'karat.run')} creates one"
            )
        self._refuse_newer(version)
        self._checksum = "checksum" if version >= 2 else "NULL"
        self._keeps_columns = version >= 3

    def _refuse_newer(self, version: int) -> None:
        if version > SCHEMA:
            raise StoreRefused(
                f"{self.url} was made by a newer karat (schema {version}, this one knows {SCHEMA}):"
                " upgrade karat"
            )

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
        """Execute a statement outside any transaction, again where the server was lost.

        Only statements that may be executed twice come here: BEGIN, queries, and appending, where the first commit of
        an identity wins.
        """
        return self._persist(lambda: self._fresh().execute(statement, parameters, binary=binary))

    def _write(self, work: Callable[[Any], T]) -> T:
        # All of them may be done twice: see the conditions in SqlBackend.
        try:
            return self._persist(lambda: self._in_transaction(work))
        except self._failures as error:
            raise self._not_written(error) from error

    def _in_transaction(self, work: Callable[[Any], T]) -> T:
        try:
            with self._transaction() as cursor:
                return work(cursor)
        except StoreError as error:
            if isinstance(error.__cause__, self._psycopg.Error):
                raise error.__cause__ from None
            raise

    def _persist(self, action: Callable[[], T]) -> T:
        """Do an action, again until it succeeds or LOST_SECONDS have passed, where the connection is lost."""
        with self._lock:
            deadline: float | None = None
            pause = FIRST_WAIT
            while True:
                try:
                    return action()
                except self._psycopg.OperationalError:
                    if not self._connection.closed or not self._is_open:
                        raise
                    if deadline is None:
                        deadline = time.monotonic() + LOST_SECONDS
                    elif time.monotonic() > deadline:
                        raise
                    else:
                        self._sleep(pause)
                        pause = min(2 * pause, LONGEST_WAIT)

    _sleep = staticmethod(time.sleep)

    def _rollback(self) -> None:
        try:
            self._connection.rollback()
        except self._psycopg.Error:
            self._connection.close()  # the caller raises the original error

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
        if has_time_limit() and self._connection is not self._limited:
            # Once for a connection: a round trip before every query would be half of its time.
            self._connection.execute(f"SET statement_timeout = {STATEMENT_MILLISECONDS}".encode())
            self._limited = self._connection
        return self._connection

    def _sql(self, sql: str) -> str:
        return sql.replace("?", "%s")

    def _matches(self, pattern: TextPattern) -> tuple[str, list[str]]:
        # Not convert_from: the encoding of a database may lack a character. `escape` writes bytes beyond ASCII as
        # octal numbers, and a backslash as two, in every database.
        text = "encode(payload, 'escape')"
        conditions = [f'lower({text} COLLATE "C") LIKE ? COLLATE "C" ESCAPE \'!\'']
        values = [like_pattern([_escape(piece) for piece in pattern.pieces])]
        if pattern.beyond_ascii:
            conditions.append(f"{text} ~ ?")
            values.append(r"\\[23][0-7][0-7]")
        if pattern.one_of:
            conditions.append(f"{text} ~ ?")
            values.append("|".join(_escape(each).replace("\\", "\\\\") for each in pattern.one_of))
        return f"({' AND '.join(conditions)})", values

    def _one_at_a_time(self, cursor: Any) -> None:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_HEADERS_LOCK,))

    def append(self, parent: int, rows: Sequence[StoredRow], owner: str | None = None) -> int:
        if not rows:
            return 0
        if any(row.cells is None for row in rows):
            self._write(
                lambda cursor: cursor.execute(
                    "UPDATE karat_headers SET columns = NULL WHERE number = %s AND columns IS NOT NULL",
                    (parent,),
                )
            )
        try:
            new = int(self._execute(APPEND, columns(parent, rows, owner)).rowcount)
        except self._failures as error:
            raise self._not_written(error) from error
        if new == 0:
            if self.header(parent) is None:
                raise self._removed()
            held = self.lease(parent) if owner is not None else None
            if owner is not None and (held is None or held.owner != owner):
                raise self._taken_over(parent)
        return new

    def _reason(self, error: Exception) -> str:
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return self._redactor.in_text(text)

    def now(self) -> float:
        return float(self._read("SELECT extract(epoch FROM clock_timestamp())::float8")[0][0])

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            self._connection.close()


def _escape(text: str) -> str:
    """A text as `encode(…, 'escape')` writes its UTF-8."""
    return "".join(
        "\\\\" if byte == 0x5C else chr(byte) if byte < 0x80 else f"\\{byte:03o}" for byte in text.encode()
    )


def columns(parent: int, rows: Sequence[StoredRow], owner: str | None = None) -> tuple[Any, ...]:
    """A batch as APPEND takes it: sorted, so that two with the same rows cannot wait for each other."""
    ordered = sorted(rows, key=_identity)
    positions, items, tries, statuses, reuses, payloads, _ = zip(*ordered, strict=True)
    known = ItemKeys()
    keys = [known[item] for item in items]
    checksums = [
        checksum(key[1], row.position, row.try_number, row.status, row.payload)
        for key, row in zip(keys, ordered, strict=True)
    ]
    stored = [key[0] for key in keys]
    lists = (list(positions), stored, list(tries), list(statuses), list(reuses), list(payloads), checksums)
    segment = pack(ordered, known) or b""
    return parent, owner, owner, len(rows), segment, crc32(segment), bool(segment), *lists


SECRET_OPTIONS = ("password", "passfile", "sslpassword", "sslkey", "oauth_client_secret", "scram_client_key")
SHOWN_OPTIONS = ("host", "hostaddr", "port", "user", "dbname", "sslmode", "options", "target_session_attrs")


def passwords_of(options: Mapping[str, Any]) -> list[str]:
    """Every secret among the options of a connection."""
    return [str(value) for name, value in options.items() if name in SECRET_OPTIONS and value]


def _refuse_misread(options: Mapping[str, Any]) -> None:
    """Raise where libpq has taken a part of a password for something else, which its messages would then quote."""
    host, user, port = (str(options.get(name) or "") for name in ("host", "user", "port"))
    if any(sign in host for sign in "@?=&") or ("?" in user and "=" in user):
        raise ValueError("host or user")
    if not all(each.isdigit() for each in port.split(",") if each):
        raise ValueError("port")


def _is_ipv6(host: str) -> bool:
    try:
        return IPv6Address(host) is not None
    except ValueError:
        return False


def without_password(url: str) -> str:
    """A URL as it may be shown: built from the parts that are known to be no secrets, not by removing secrets.

    libpq percent-decodes the names of options too, and takes everything before the first @ for the user; what it makes
    of a URL is therefore the only thing that can be trusted.
    """
    from psycopg import Error
    from psycopg.conninfo import conninfo_to_dict

    scheme = "postgresql"
    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(url).items() if value}
    except Error:
        return f"{scheme}://***"
    hosts = [f"[{each}]" if _is_ipv6(each) else each for each in parts.get("host", "").split(",")]
    for name, values in (
        ("user", [parts.get("user", "")]),
        ("host", hosts),
        ("dbname", [parts.get("dbname", "")]),
    ):
        # `host?password=p@w` makes libpq take `host?password=p` for the user: what looks like an option is not shown.
        if any(sign in each for each in values for sign in "?=&@:" if each[:1] not in ("/", "[")):
            parts[name] = "***"
            hosts = ["***"] if name == "host" else hosts
    if not all(each.isdigit() for each in parts.get("port", "").split(",") if each):
        parts["port"] = "***"
    credentials = quote(parts.get("user", ""), safe="*")
    if "password" in parts:
        credentials += ":***"
    host = parts.get("host", "")
    in_path = not host.startswith("/")
    ports = parts.get("port", "").split(",")
    if not in_path:
        hosts = [""] * len(ports)
    elif len(ports) != len(hosts):
        ports = ports[:1] * len(hosts)  # one port for all
    place = ",".join(f"{each}:{port}" if port else each for each, port in zip(hosts, ports, strict=True))
    shown = {
        name: value
        for name, value in parts.items()
        if name in SHOWN_OPTIONS
        and name not in ("user", "port", "dbname")
        and not (name == "host" and in_path)
    }
    secrets = [name for name in parts if name in SECRET_OPTIONS and name != "password"]
    options = [f"{name}={quote(value, safe='/*')}" for name, value in shown.items()]
    options += [f"{name}=***" for name in secrets]
    query = f"?{'&'.join(options)}" if options else ""
    at = "@" if credentials else ""
    path = f"/{quote(parts['dbname'], safe='*')}" if "dbname" in parts else ""
    return f"{scheme}://{credentials}{at}{place}{path}{query}"
