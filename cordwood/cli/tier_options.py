"""What the verbs of `cordwood tier` have in common: their options, and the store that they open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from cordwood.errors import BadSetting

if TYPE_CHECKING:
    from cordwood.host.seams import Host
    from cordwood.tier.patient_store import PatientStore

Result = TypeVar("Result")

SECRET_WORDS = ("key", "secret", "token", "password", "credential", "sas")

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        "-s",
        envvar="CORDWOOD_TIER_STORE",
        metavar="ADDRESS",
        help="A directory, s3://bucket/prefix, gs://… or az://….",
    ),
]

OptionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="An option of the store: endpoint=https://…, region=…. "
        "Credentials come from the environment.",
    ),
]

LogArgument = Annotated[int, typer.Argument(metavar="LOG", min=1, help="The log's number.")]

LogsArgument = Annotated[
    list[int] | None,
    typer.Argument(
        metavar="[LOG]...", help="Numbers of logs; the default is all logs.", show_default=False
    ),
]

LedgersOption = Annotated[
    list[int] | None,
    typer.Option("--ledger", metavar="ID", min=0, help="A ledger; may be repeated."),
]


def run_on_store(
    address: str,
    given: list[str] | None,
    act: Callable[[Host, PatientStore], Awaitable[Result]],
) -> Result:
    """Do something with an object store, on a loop of its own."""
    from cordwood.host.kept_memory import keep_memory
    from cordwood.host.real import real_host
    from cordwood.tier.addresses import open_object_store

    keep_memory()  # as nodes do: row groups of megabytes come and go
    options = store_options(given or [])

    async def main() -> Result:
        async with real_host() as host:
            objects = await open_object_store(host, address, options)
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_callback(objects.close)
                return await act(host, objects)

    return asyncio.run(main())


def store_options(given: list[str]) -> dict[str, str]:
    """Options from `NAME=VALUE`.

    Raises:
        BadSetting: an option is not valid, or would show a credential to every user of the machine.
    """
    options: dict[str, str] = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise BadSetting("an option is written NAME=VALUE, as region=eu-central-1")
        if any(word in name.lower() for word in SECRET_WORDS):
            raise BadSetting(
                f"{name} stays off the command line, where everybody sees it: set it in the "
                "environment, as AWS_SECRET_ACCESS_KEY"
            )
        options[name] = value
    return options
