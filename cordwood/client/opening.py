"""The result of a call that opens something: the caller may await it, enter it or iterate over it.

`connect`, `read`, `reader` and `consumer` need answers from nodes before there is something to
use. They return an `Opening`, so that each of these works with one keyword:

    store = await connect(url)                  async with connect(url) as store: ...
    stream = await store.read("orders")         async for item in store.read("orders"): ...

Source: docs/design.md §7.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar


class Entered(Protocol):
    """An object that an `async with` closes."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


Item_co = TypeVar("Item_co", covariant=True)


class Iterated(Entered, Protocol[Item_co]):
    """Also an object that is read item by item."""

    def __aiter__(self) -> AsyncIterator[Item_co]: ...


Opened = TypeVar("Opened", bound=Entered)
Item = TypeVar("Item")


class Opening(Generic[Opened]):
    """Opens once, however often it is awaited.

    Nothing happens before it is awaited, entered or iterated. Cancelling the wait is harmless:
    the next one opens anew.
    """

    def __init__(self, opening: Callable[[], Coroutine[Any, Any, Opened]]) -> None:
        """
        Args:
            opening: opens it; is called again only after it failed or was cancelled.
        """
        self._opening = opening
        self._opened: Opened | None = None
        self._lock = asyncio.Lock()

    async def opened(self) -> Opened:
        """The opened object, for callers that need a coroutine.

        Raises:
            CordwoodError: it cannot be opened; the call that made this names the reasons.
        """
        # Two tasks that wait at once get the same object, not one each.
        async with self._lock:
            if self._opened is None:
                self._opened = await self._opening()
            return self._opened

    def __await__(self) -> Generator[Any, Any, Opened]:
        return self.opened().__await__()

    async def __aenter__(self) -> Opened:
        opened = await self.opened()
        await opened.__aenter__()
        return opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._opened is not None, "the entered object was opened"
        await self._opened.__aexit__(kind, error, trace)


Source = TypeVar("Source", bound=Iterated[Any])


class OpeningItems(Opening[Source], Generic[Source, Item]):
    """As `Opening`, of something that has items: `async for` opens it too.

    A second loop goes on where the first one was left.
    """

    def __aiter__(self) -> AsyncIterator[Item]:
        return _Items(self)


class _Items(Generic[Item]):
    def __init__(self, opening: OpeningItems[Any, Item]) -> None:
        self._opening = opening
        self._items: AsyncIterator[Item] | None = None

    def __aiter__(self) -> _Items[Item]:
        return self

    async def __anext__(self) -> Item:
        if self._items is None:
            self._items = aiter(await self._opening.opened())
        return await anext(self._items)
