"""Appends beside other loads of the same run: NATS on the same disk, and one log beside many.

Source: docs/sources/hotpath.md §5 (its table of peers, interleaved).
"""

from __future__ import annotations

import os

from cordwood import aio
from cordwood.bench.append import WARM_UP_SHARE, AppendProfile, Say, run_profile
from cordwood.bench.append_loops import Limit, append_singles, client_settings
from cordwood.bench.figure import Figure, Sample, make_figure, percentile_ms
from cordwood.bench.nats import REFERENCE_IS, nats_cluster
from cordwood.bench.place import bench_place
from cordwood.errors import BadSetting

NATS_S = 1.0
"""Length of each of its runs: tens of thousands of messages."""


async def bench_beside_nats(
    profile: AppendProfile, program: str, *, directory: str, nodes: int, repeats: int, say: Say
) -> Figure:
    """A profile on a fresh cluster, in turns with JetStream taking messages of the same size.

    Args:
        program: nats-server.
    Raises:
        Unreachable: either cluster did not start, or NATS failed.
        CordwoodError: an append failed.
    """
    name = f"{profile.name}_beside_nats"
    blocks = round(profile.blocks * (repeats + WARM_UP_SHARE)) + 1
    say(f"{name}: starting")
    async with (
        bench_place(
            None, directory, nodes=nodes, blocks=blocks, block_bytes=profile.block_bytes
        ) as place,
        nats_cluster(program, place.directory) as nats,
        await aio.connect(
            place.url, client_settings(profile.size, profile.in_flight, profile.batch)
        ) as store,
    ):
        await run_profile(store, profile, WARM_UP_SHARE)
        message = profile.size * (profile.batch or 1)
        await nats.publish(message, profile.in_flight, NATS_S * WARM_UP_SHARE)
        samples = []
        for repeat in range(repeats):
            theirs = await nats.publish(message, profile.in_flight, NATS_S)
            run = await run_profile(store, profile)
            ordered = sorted(run.latencies_s)
            samples.append(
                Sample(
                    profile.value(run),
                    profile.per_bytes(theirs * message),
                    percentile_ms(ordered, 0.5),
                    percentile_ms(ordered, 0.99),
                )
            )
            say(f"{name}: {repeat + 1} of {repeats}")
    return make_figure(
        name, profile.unit, samples, reference_is=REFERENCE_IS, parameters=_parameters(profile)
    )


async def bench_logs(
    profile: AppendProfile, logs: int, *, directory: str, nodes: int, repeats: int, say: Say
) -> Figure:
    """Single appends to this many logs in turn, beside the same appends to one of them.

    Raises:
        BadSetting: a profile of batches, or no logs.
        Unreachable: the cluster did not start.
        CordwoodError: an append failed.
    """
    if profile.batch or logs < 1:
        raise BadSetting("many logs are appended to one record at a time, and are at least 1")
    name = f"{profile.name}_{logs}_logs"
    # In the worst case each record is a separate block, and half of all records go to one log.
    blocks = round(profile.records * (repeats + 2 * WARM_UP_SHARE)) + profile.blocks * repeats
    say(f"{name}: starting")
    async with (
        bench_place(None, directory, nodes=nodes, blocks=blocks // 8, block_bytes=4096) as place,
        await aio.connect(place.url, client_settings(profile.size, profile.in_flight, 0)) as store,
    ):
        opened = [await store.open_log(f"bench/logs/{number}") for number in range(logs)]
        value = os.urandom(profile.size)
        warm_up = Limit(max(logs, int(profile.records * WARM_UP_SHARE)), profile.seconds)
        await append_singles(opened, value, profile.in_flight, warm_up)
        say(f"{name}: {logs} logs are there")
        limit = Limit(profile.records, profile.seconds)
        samples = []
        for repeat in range(repeats):
            one = await append_singles(opened[:1], value, profile.in_flight, limit)
            many = await append_singles(opened, value, profile.in_flight, limit)
            ordered = sorted(many.latencies_s)
            samples.append(
                Sample(
                    profile.value(many),
                    profile.value(one),
                    percentile_ms(ordered, 0.5),
                    percentile_ms(ordered, 0.99),
                )
            )
            say(f"{name}: {repeat + 1} of {repeats}")
    return make_figure(
        name, profile.unit, samples, reference_is="the same appends to one of these logs",
        parameters=_parameters(profile) | {"logs": logs},
    )  # fmt: skip


def _parameters(profile: AppendProfile) -> dict[str, int | float | str]:
    return {
        "size": profile.size, "in_flight": profile.in_flight, "batch": profile.batch,
        "cores": os.cpu_count() or 0,
    }  # fmt: skip
