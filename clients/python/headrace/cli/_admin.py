"""`headrace admin`: what a server is doing, and in and out of service, over its admin port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import click
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.table import Table

from headrace._channel import open_channel
from headrace._telemetry import client_tracer
from headrace._unary import UnaryCaller
from headrace.cli._connection import Connection, connection_options
from headrace.cli._output import enum_word, print_table
from headrace.v1 import admin_pb2, admin_pb2_grpc, generation_pb2, model_pb2

__all__ = ["admin"]

SERVICE: Final = "headrace.v1.AdminService"
DEFAULT_ADMIN_TARGET: Final = "127.0.0.1:50052"
POLL_S: Final = 0.5
ADMIN_TARGET: Final = click.option(
    "--admin-target",
    "target",
    envvar="HEADRACE_ADMIN_TARGET",
    default=DEFAULT_ADMIN_TARGET,
    show_default=True,
    show_envvar=True,
    help="Where the server's admin port is.",
)


@click.group()
def admin() -> None:
    """Look after one server, over its admin port (HEADRACE_ADMIN_PORT there)."""


def _admin_options(command: Callable[..., None]) -> Callable[..., None]:
    return connection_options(command, ADMIN_TARGET)


@admin.command()
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@_admin_options
def status(*, connection: Connection, as_json: bool) -> None:
    """Tell state, load of every model and class, and how generations have ended."""

    async def ask() -> admin_pb2.GetServerStatusResponse:
        async with _operator(connection) as operator:
            return await operator.status()

    answer = asyncio.run(ask())
    if as_json:
        _print_json(answer)
    else:
        _print_status(answer)


@admin.command()
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(min=0, max=86_400),
    metavar="SECONDS",
    help="End what still runs after so long.  [default: let it finish]",
)
@click.option("--wait", "is_waiting", is_flag=True, help="Return when nothing runs any more.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@_admin_options
def drain(*, connection: Connection, grace_s: float | None, is_waiting: bool, as_json: bool) -> None:
    """Take the server out of service: no new work, what runs may finish.

    The process goes on; `resume` takes it back. Repeat it to change the grace.
    Without a grace nothing runs longer than the longest deadline that the server
    allows.
    """

    async def ask() -> admin_pb2.DrainResponse:
        async with _operator(connection) as operator:
            answer = await operator.drain(grace_s)
            while is_waiting and answer.active_count:
                if not as_json:
                    click.echo(f"draining: {answer.active_count} active", err=True)
                await asyncio.sleep(POLL_S)
                found = await operator.status()
                if found.state != admin_pb2.SERVING_STATE_DRAINING:
                    raise click.ClickException("the server was taken back into service")
                answer = admin_pb2.DrainResponse(active_count=found.active_count)
            return answer

    answer = asyncio.run(ask())
    if as_json:
        _print_json(answer)
    else:
        click.echo(f"draining: {answer.active_count} active" if answer.active_count else "drained: nothing runs")


@admin.command()
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@_admin_options
def resume(*, connection: Connection, as_json: bool) -> None:
    """Take the server back into service after a drain. Fails once its process is shutting down."""

    async def ask() -> admin_pb2.ResumeServingResponse:
        async with _operator(connection) as operator:
            return await operator.resume()

    answer = asyncio.run(ask())
    if as_json:
        _print_json(answer)
    else:
        click.echo("serving")


class _Operator:
    """The calls of AdminService; each fails with HeadraceError."""

    def __init__(self, connection: Connection, stub: Any) -> None:
        self._caller = UnaryCaller(connection.target, connection.metadata, client_tracer(None))
        self._timeout_s = connection.timeout_s
        self._stub = stub

    async def status(self) -> admin_pb2.GetServerStatusResponse:
        request = admin_pb2.GetServerStatusRequest()
        answer: admin_pb2.GetServerStatusResponse = await self._call("GetServerStatus", request)
        return answer

    async def drain(self, grace_s: float | None) -> admin_pb2.DrainResponse:
        request = admin_pb2.DrainRequest()
        if grace_s is not None:
            request.grace.FromTimedelta(timedelta(seconds=grace_s))
        answer: admin_pb2.DrainResponse = await self._call("Drain", request)
        return answer

    async def resume(self) -> admin_pb2.ResumeServingResponse:
        answer: admin_pb2.ResumeServingResponse = await self._call("ResumeServing", admin_pb2.ResumeServingRequest())
        return answer

    async def _call(self, name: str, request: Message) -> Any:
        return await self._caller.call(f"{SERVICE}/{name}", getattr(self._stub, name), request, self._timeout_s)


@asynccontextmanager
async def _operator(connection: Connection) -> AsyncIterator[_Operator]:
    async with open_channel(connection.target, connection.tls, ()) as channel:
        yield _Operator(connection, admin_pb2_grpc.AdminServiceStub(channel))


def _print_json(answer: Message) -> None:
    fields = MessageToDict(answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    counts = fields.get("outcome_counts")
    if counts is not None:  # 64 bits are text in protobuf's JSON
        fields["outcome_counts"] = {name: int(count) for name, count in counts.items()}
    click.echo(json.dumps(fields, ensure_ascii=False))


def _print_status(answer: admin_pb2.GetServerStatusResponse) -> None:
    state = enum_word(admin_pb2.ServingState, answer.state, "SERVING_STATE_")
    click.echo(f"{state}; {answer.active_count} active; version {answer.version}; up {_age(answer.uptime)}")
    for problem in answer.problems:
        click.echo(f"! {problem}")
    table = Table("model", "state", "slots", "class", "running", "waiting")
    for model in answer.models:
        row = [
            model.model,
            enum_word(model_pb2.ModelState, model.state, "MODEL_STATE_"),
            f"{model.running_count} of {model.running_limit}",
        ]
        for load in model.classes:
            word = enum_word(generation_pb2.Priority, load.priority, "PRIORITY_")
            table.add_row(*row, word, str(load.running_count), f"{load.waiting_count} of {load.waiting_limit}")
            row = ["", "", ""]
    print_table(table)
    if answer.outcome_counts:
        ended = sorted(answer.outcome_counts.items(), key=lambda item: (-item[1], item[0]))
        click.echo("ended: " + ", ".join(f"{count} {name}" for name, count in ended))


def _age(uptime: Duration) -> str:
    return str(timedelta(seconds=uptime.seconds))
