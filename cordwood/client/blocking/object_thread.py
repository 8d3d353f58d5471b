"""An object store for callers that have no loop: a thread, and the store that it opened.

Source: docs/objects.md, "The store".
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from cordwood.host.loop_thread import LoopThread
from cordwood.host.real import RealHost, real_host
from cordwood.tier.addresses import open_object_store
from cordwood.tier.patient_store import PatientStore


class ObjectThread:
    """See the module. Subclasses make their calls on the thread.

    Args:
        address: of the object store.
        name: of the thread.
    Raises:
        BadSetting: no store opens at this address.
    """

    def __init__(self, address: str, name: str) -> None:
        self._thread = LoopThread(name)
        self._stack = AsyncExitStack()
        try:
            self._host, self._objects = self._thread.call(self._open(address))
        except BaseException:
            self._thread.close()
            raise

    def close(self) -> None:
        """Let the store go."""
        self._thread.call(self._stack.aclose())
        self._thread.close()

    async def _open(self, address: str) -> tuple[RealHost, PatientStore]:
        host = await self._stack.enter_async_context(real_host())
        objects = await open_object_store(host, address)
        self._stack.push_async_callback(objects.close)
        return host, objects
