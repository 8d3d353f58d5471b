"""S3 and compatible stores, and those of Google and Azure, through the library `obstore`.

The library is the `s3` extra. Credentials come only from the library's own sources (environment,
profiles, the machine's role) or from `options`. No error, log line or `repr` of Cordwood shows one:
the library's messages are cut to their first line, without queries of addresses and without the
values of options.

The library does not retry here. If the library resent a conditional put after a lost answer, the
put would find its own object and report a false conflict. The caller makes pauses and retries.

Source: docs/objects.md, "The store".
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from cordwood.block import Buffer
from cordwood.errors import (
    AccessDenied,
    BadSetting,
    CordwoodError,
    Malformed,
    NoObject,
    ObjectChanged,
    OutcomeUnknown,
    Overloaded,
    Unreachable,
)
from cordwood.tier.object_store import (
    LIST_MAX,
    WHOLE_BYTES_MAX,
    Etag,
    ObjectInfo,
    check_deletion,
    check_name,
    check_page,
    check_prefix,
    check_range,
)

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "https")

PART_BYTES = 16 << 20
"""The bytes of a part in a multipart upload. S3 takes 10,000 parts, so an object has 156 GiB at
most."""

PARTS_IN_FLIGHT = 4
"""Parts of one upload: beside the content itself the library holds 64 MiB."""

CONNECT_TIMEOUT = "5s"
REQUEST_TIMEOUT = "120s"
"""The timeout of one request: enough for a part of 16 MiB at 140 KB/s. The caller's deadline bounds
all requests of a call."""

_STATUS = re.compile(r"status code: (\d{3})")
_SLOW_STATUS = ("429", "503")
_RANGE_STATUS = "416"
_SLOW_DOWN = re.compile(r"\b(?:SlowDown|ServerBusy)\b")
_BAD_RANGE = re.compile(r"\b(?:Invalid range|InvalidRange)\b")
_FOREIGN_PATH = "Encountered object with invalid path"
_REQUEST = re.compile(r"Error performing \S+ \S+")
"""The library's words for a request, with its address."""
_QUERY = re.compile(r"\?\S*")
_TEXT_MAX = 300

Result = TypeVar("Result")


class ObstoreStore:
    """See the module.

    Args:
        store: a store of the library's.
        address: what errors call it.
        secrets: texts that no error may show.
    """

    def __init__(self, store: Any, address: str, secrets: Sequence[str] = ()) -> None:
        self._store = store
        self._address = address
        self._secrets = tuple(secret for secret in secrets if secret)

    def __repr__(self) -> str:
        return f"ObstoreStore({self._address!r})"

    @property
    def library_store(self) -> Any:
        """The library's store object, for measurements of the library alone."""
        return self._store

    async def put(self, name: str, content: Sequence[Buffer], *, timeout_s: float) -> None:
        import obstore

        check_name(name)
        # An object comes in one piece: 34 MB of it cost 20 ms of the loop's time to copy.
        whole = content[0] if len(content) == 1 else b"".join(content)
        call = obstore.put_async(
            self._store,
            name,
            whole,
            chunk_size=PART_BYTES,
            max_concurrency=PARTS_IN_FLIGHT,
        )
        await self._run(call, name, timeout_s, writes=True)

    async def put_if(
        self, name: str, content: bytes, expected: Etag | None, *, timeout_s: float
    ) -> Etag:
        import obstore

        check_name(name)
        mode = "create" if expected is None else _versions(expected)
        call = obstore.put_async(self._store, name, content, mode=mode, use_multipart=False)
        return _etag(await self._run(call, name, timeout_s, writes=True))

    async def read(self, name: str, *, timeout_s: float) -> tuple[bytes, Etag]:
        import obstore

        check_name(name)

        async def call() -> tuple[bytes, Etag]:
            found = await obstore.get_async(self._store, name)
            if found.meta["size"] > WHOLE_BYTES_MAX:
                raise Malformed(f"{name} has more than {WHOLE_BYTES_MAX} bytes: read it by ranges")
            return bytes(await found.bytes_async()), _etag(found.meta)

        return await self._run(call(), name, timeout_s)

    async def get(self, name: str, start: int, stop: int, *, timeout_s: float) -> bytes:
        import obstore

        check_range(name, start, stop)
        call = obstore.get_range_async(self._store, name, start=start, end=stop)
        content = bytes(await self._run(call, name, timeout_s, ranged=True))
        if len(content) != stop - start:
            raise Malformed(f"{name} ends at byte {start + len(content)}, before byte {stop}")
        return content

    async def head(self, name: str, *, timeout_s: float) -> ObjectInfo | None:
        import obstore

        check_name(name)
        try:
            return _info(await self._run(obstore.head_async(self._store, name), name, timeout_s))
        except NoObject:
            return None

    async def list_page(
        self, prefix: str, *, after: str = "", limit: int = LIST_MAX, timeout_s: float
    ) -> list[ObjectInfo]:
        import obstore

        check_prefix(prefix)
        check_page(after, limit)

        async def call() -> list[ObjectInfo]:
            page: list[ObjectInfo] = []
            listed = obstore.list(
                self._store, prefix or None, offset=after or None, chunk_size=limit
            )
            async for chunk in listed:
                page += (_info(each) for each in chunk if _is_ours_below(prefix, each["path"]))
                if len(page) >= limit:
                    break
            return page[:limit]

        return await self._run(call(), prefix, timeout_s)

    async def delete(self, names: Sequence[str], *, timeout_s: float) -> None:
        import obstore

        check_deletion(names)
        if not names:
            return

        async def call() -> None:
            try:
                await obstore.delete_async(self._store, list(names))
                return
            except FileNotFoundError:
                pass
            # Some stores fail for one missing object, and report nothing about the others.
            for name in names:
                try:
                    await obstore.delete_async(self._store, [name])
                except FileNotFoundError:
                    continue

        await self._run(call(), names[0], timeout_s, writes=True)

    async def close(self) -> None:
        """The library has nothing to close."""

    async def _run(
        self,
        call: Awaitable[Result],
        what: str,
        timeout_s: float,
        *,
        writes: bool = False,
        ranged: bool = False,
    ) -> Result:
        """Wait for a call, and turn the library's errors into Cordwood's."""
        from obstore.exceptions import BaseError

        try:
            async with asyncio.timeout(timeout_s):
                return await call
        except TimeoutError as error:
            late = f"{self._address}: no answer for {what} within {timeout_s} s"
            raise (OutcomeUnknown if writes else Unreachable)(late) from error
        except (BaseError, OSError) as error:
            # `from None`: the library's message may hold a credential.
            raise self._ours(error, what, writes=writes, ranged=ranged) from None

    def _ours(self, error: Exception, what: str, *, writes: bool, ranged: bool) -> CordwoodError:
        from obstore import exceptions

        text = str(error)
        match error:
            case FileNotFoundError() | exceptions.NotFoundError():
                return NoObject(f"{self._address} has no object {what}")
            case exceptions.AlreadyExistsError() | exceptions.PreconditionError():
                return ObjectChanged(f"{what} is not the object to replace")
            case exceptions.PermissionDeniedError() | exceptions.UnauthenticatedError():
                return AccessDenied(
                    f"{self._address} refuses {what}: see that the credentials in force may read, "
                    "write, list and delete there"
                )
            case exceptions.NotSupportedError():
                return BadSetting(f"{self._address}: {self._shown(text)}")
        if _FOREIGN_PATH in text:
            # The library lists nothing around it, and will not later either.
            return BadSetting(
                f"{self._address} has a name that no listing can pass. Remove this object, which "
                f"another program put there: {self._shown(text)}"
            )
        if _asks_for_less(text):
            return Overloaded(f"{self._address} asks to be called less: {self._shown(text)}")
        if ranged and _ends_too_early(text):
            return Malformed(f"{what} is shorter than what was asked for: {self._shown(text)}")
        kind = OutcomeUnknown if writes else Unreachable
        return kind(f"{self._address}: {what}: {self._shown(text)}")

    def _shown(self, text: str) -> str:
        """The part of an error of the library that may be shown."""
        line = _QUERY.sub("", text.strip().partition("\n")[0])
        for secret in self._secrets:
            line = line.replace(secret, "…")
        return line[:_TEXT_MAX]


def _asks_for_less(text: str) -> bool:
    """Whether an error of the library says that the store did nothing and wants fewer calls."""
    if (status := _STATUS.search(text)) is not None:
        return status[1] in _SLOW_STATUS
    return _SLOW_DOWN.search(_REQUEST.sub("", text)) is not None


def _ends_too_early(text: str) -> bool:
    """Whether an error of the library says that an object has fewer bytes than were asked for.

    Trap: the text also has the address and the duration of the request. A lost answer of the bucket
    `orange`, or one after 416.2 ms, was taken for a damaged object.
    """
    if (status := _STATUS.search(text)) is not None:
        return status[1] == _RANGE_STATUS
    return _BAD_RANGE.search(_REQUEST.sub("", text)) is not None


def open_obstore(url: str, options: Mapping[str, str] | None = None) -> ObstoreStore:
    """Open a store by its address, as `s3://bucket/prefix`.

    Args:
        options: of the library's, by name, as `endpoint` or `region`. Credentials are better
            left to where it looks for them.
    Raises:
        BadSetting: the library is not installed, or does not know the store or an option.
    """
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES or "@" in url.partition("://")[2].partition("/")[0]:
        raise BadSetting(
            f"an object store's address is a path, or {SCHEMES[0]}://bucket/prefix, gs://… or "
            "az://…, without credentials in it"
        )
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise BadSetting(
            f"{scheme}:// needs the library obstore: pip install 'cordwood[s3]'"
        ) from None
    given = dict(options or {})
    plain = given.get("endpoint", "").startswith("http://")
    client: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT, "timeout": REQUEST_TIMEOUT}
    # An S3 server without TLS is called only if its address says `http://`: in the options, or in
    # the environment, which the library reads by itself and does not show.
    if plain or scheme in ("s3", "s3a"):
        client["allow_http"] = True
    address = _QUERY.sub("", url)
    secrets = list(given.values())
    opened = ObstoreStore(None, address, secrets)
    try:
        store = from_url(
            url,
            config=given or None,
            client_options=client,
            retry_config={"max_retries": 0},
        )
    except (BaseError, ValueError, TypeError) as error:
        shown = opened._shown(str(error))
        raise BadSetting(f"{address} cannot be opened: {shown}") from None
    return ObstoreStore(store, address, secrets)


def _versions(etag: Etag) -> dict[str, str]:
    e_tag, _, version = etag.partition("\n")
    known = {"e_tag": e_tag, "version": version}
    return {name: value for name, value in known.items() if value}


def _etag(meta: Any) -> Etag:
    """The two tags by which stores tell versions: S3 and Azure compare the first, Google the
    second."""
    return Etag(f"{meta.get('e_tag') or ''}\n{meta.get('version') or ''}")


def _is_ours_below(prefix: str, name: str) -> bool:
    """Whether a listed name can be an object of Cordwood's below a prefix.

    Trap: other programs mark directories. The library gives the marker `logs/` as `logs`, which is
    not below `logs/`, and a look for the next log went on behind all logs. No call takes a name
    such as `logs/7_$folder$`, so no page could begin after it.
    """
    if not name.startswith(prefix):
        return False
    try:
        check_name(name)
    except BadSetting:
        return False
    return True


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1e6))
