"""All entries below a prefix, page by page, so that no number of keys is too many.

Each page is read at a moment of its own. A caller that needs the entries of one moment uses
`MetadataStore.list`, which has a limit. Between two pages other tasks run: decoding a hundred
thousand entries at once would hold up a node's loop for half a second.

Source: docs/design.md §6.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from cordwood.metadata.store import MetadataStore, Page

PAGE_KEYS = 4096
"""Keys of one page. Their entries take about a megabyte, and decoding them a few ten ms."""


async def pages(store: MetadataStore, prefix: str) -> AsyncIterator[Page]:
    """Every entry with a key that begins with `prefix`, by key; those that come or go meanwhile may
    be among them.

    Raises:
        Unreachable: the store did not answer.
        BadSetting: no key begins so.
    """
    after, is_full = "", True
    while is_full:
        page = await store.page(prefix, after, PAGE_KEYS)
        if page:
            yield page
            after = page[-1][0]
        is_full = len(page) == PAGE_KEYS
