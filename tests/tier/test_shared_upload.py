"""One object of several logs: a log that cannot take part keeps no other log out."""

from __future__ import annotations

import pytest
from made_objects import Made
from scenarios import as_scenario
from test_repair import Cloud, on_bucket

from cordwood.errors import BadSetting, Corrupt
from cordwood.layout.body import encode_body
from cordwood.layout.object_names import head_name, origin_name
from cordwood.tier.shared_upload import LogItems, upload_shared

LOGS = (7, 8, 9)


def share(cloud: Cloud, log: int, first: int = 0) -> LogItems:
    made = Made(log)
    for number in range(3):
        made.block(encode_body([b"%d" % number] * 4, timestamps_us=5))
    return LogItems(log, f"/{log}", 5, cloud.manifest(log), first or made.first, made.items)


@pytest.mark.parametrize("bad", ["begins inside a block", "block", "manifest", "origin"])
@as_scenario(on_bucket)
async def test_a_bad_log_keeps_no_other_log_out(cloud: Cloud, *, bad: str) -> None:
    """All small logs of an uploader rested with it, longer each time."""
    shares = [share(cloud, log) for log in LOGS]
    if bad == "begins inside a block":  # as after `tier repair --end` with another LSN
        shares[1] = share(cloud, 8, Made(8).next + 2)
    elif bad == "block":
        header, body = shares[1].items[-1]
        shares[1].items[-1] = header, bytes([body[0] ^ 1]) + bytes(body[1:])
    else:
        name = head_name(8) if bad == "manifest" else origin_name(8)
        await cloud.store.put(name, [b"spoilt"], timeout_s=10.0)
    await upload_shared(cloud.store, cloud.host, shares)
    assert isinstance(shares[1].failed, BadSetting if "inside" in bad else Corrupt)
    for each in (shares[0], shares[2]):
        head = await cloud.manifest(each.log).load()
        assert each.failed is None
        assert head.end == each.done.end == each.items[-1][0].last + 1
    assert sum(name.startswith("shared/") for name in cloud.bucket.names()) == 1
