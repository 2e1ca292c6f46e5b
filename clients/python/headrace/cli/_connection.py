"""What every command shares: where the service is, and how a failed call is reported."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from headrace import AsyncClient, HeadraceError, TlsConfig
from headrace._aio import DEFAULT_TARGET
from headrace._unary import metadata_pairs

__all__ = ["INTERRUPTED", "CallFailed", "Connection", "connection_options", "failure_line"]

Pairs = tuple[tuple[str, str], ...]
INTERRUPTED: Final = 128 + signal.SIGINT  # as shells report it
AUTHORIZATION: Final = "authorization"
PEM: Final = click.Path(exists=True, dir_okay=False)


class CallFailed(click.ClickException):
    """A call failed: one line on stderr, exit code 1."""

    def __init__(self, error: HeadraceError) -> None:
        super().__init__(failure_line(error))

    def show(self, file: Any = None) -> None:
        """Write the line, without click's own prefix."""
        click.echo(f"error: {self.message}", err=file is None, file=file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where the service is and how to reach it, as given on the command line."""

    target: str
    timeout_s: float | None
    tls: TlsConfig | None
    metadata: Pairs

    def client(self) -> AsyncClient:
        """Return a client for it."""
        return AsyncClient(self.target, tls=self.tls, metadata=self.metadata)


def failure_line(error: HeadraceError) -> str:
    """Return everything a person needs of a failure, in one line: every violation, when to retry, the request id."""
    text = "; ".join(f"{v.field}: {v.description}" for v in error.violations) or error.message
    notes = []
    if error.retry_after_s is not None:
        notes.append(f"retry after {error.retry_after_s:g} s")
    if error.request_id:
        notes.append(f"request id {error.request_id}")
    suffix = f" ({', '.join(notes)})" if notes else ""
    line = f"{error.reason or error.status.name}: {text}{suffix}"
    return " ".join(line.split())


def _metadata(_context: click.Context, _option: click.Parameter, values: Sequence[str]) -> Pairs:
    pairs = []
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE")
        pairs.append((key.strip().lower(), text))
    try:
        metadata_pairs(pairs)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return tuple(pairs)


def _api_key(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if not value:
        return None
    try:
        metadata_pairs([(AUTHORIZATION, value)])
    except ValueError:  # whose text may hold it
        raise click.BadParameter("is no key: it has characters that cannot be sent") from None
    return value


TARGET: Final = click.option(
    "--target",
    envvar="HEADRACE_TARGET",
    default=DEFAULT_TARGET,
    show_default=True,
    show_envvar=True,
    help="Where the service is.",
)
OPTIONS: Final = (
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, min_open=True),
        help="Seconds for one call.  [default: 600 for a generation, 10 for the rest]",
    ),
    click.option(
        "--metadata",
        multiple=True,
        callback=_metadata,
        metavar="KEY=VALUE",
        help="Metadata for every call, for example authorization=... (repeatable).",
    ),
    click.option(
        "--api-key",
        envvar="HEADRACE_API_KEY",
        show_envvar=True,
        callback=_api_key,
        metavar="KEY",
        help="API key or token. Better in the variable: others see the command line.",
    ),
    click.option("--tls", is_flag=True, help="Use TLS; implied by the other --tls options."),
    click.option("--tls-ca", type=PEM, help="Root certificates (PEM)."),
    click.option("--tls-cert", type=PEM, help="Client certificate (PEM)."),
    click.option("--tls-key", type=PEM, help="Private key of the client certificate (PEM)."),
    click.option("--tls-server-name", help="Name to verify, if it is not the one in --target."),
)


def connection_options(
    command: Callable[..., None], target: Callable[[Callable[..., None]], Callable[..., None]] = TARGET
) -> Callable[..., None]:
    """Add the options of `Connection` to a command, which gets it as `connection`; `target` is the option for where."""

    @functools.wraps(command)
    def with_connection(
        *,
        target: str,
        timeout_s: float | None,
        metadata: Pairs,
        api_key: str | None,
        tls: bool,
        tls_ca: str | None,
        tls_cert: str | None,
        tls_key: str | None,
        tls_server_name: str | None,
        **options: Any,
    ) -> None:
        config = None
        if tls or tls_ca or tls_cert or tls_key or tls_server_name:
            try:
                config = TlsConfig.from_files(ca=tls_ca, cert=tls_cert, key=tls_key, server_name=tls_server_name)
            except ValueError as error:
                raise click.UsageError("--tls-cert and --tls-key go together") from error
        if api_key is not None and all(name != AUTHORIZATION for name, _ in metadata):
            metadata = (*metadata, (AUTHORIZATION, f"Bearer {api_key}"))
        connection = Connection(target=target, timeout_s=timeout_s, tls=config, metadata=metadata)
        try:
            command(connection=connection, **options)
        except HeadraceError as error:
            raise CallFailed(error) from error
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None

    for option in reversed((target, *OPTIONS)):
        with_connection = option(with_connection)
    return with_connection
