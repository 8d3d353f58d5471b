"""Opens an object store by its address: a directory, or `s3://…`, `gs://…`, `az://…`.

Source: docs/objects.md, "The store".
"""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.errors import BadSetting
from cordwood.host.seams import Host
from cordwood.tier.local_store import open_local_store
from cordwood.tier.obstore_store import open_obstore
from cordwood.tier.patient_store import PatientStore


async def open_object_store(
    host: Host, address: str, options: Mapping[str, str] | None = None
) -> PatientStore:
    """Open a store; its calls are patient.

    Args:
        address: see the module.
        options: the library's options, for stores other than directories.
    Raises:
        BadSetting: it is no address, or the library for it is not installed.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        if not address:
            raise BadSetting("an object store's address is empty: give a directory, or s3://…")
        return PatientStore(await open_local_store(host, address), host.random)
    if scheme == "file":
        return PatientStore(await open_local_store(host, rest), host.random)
    return PatientStore(open_obstore(address, options), host.random)
