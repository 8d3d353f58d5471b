"""The part of a proof about reads beside a grey failure: the speed of a reader.

One of five real nodes is stopped for all but 5 ms of each half second: it runs, it answers, and it
is of no use. A reader must notice, let other nodes send in its place, and keep RATIO_MIN of its
throughput from healthy nodes (`cordwood bench read --slow-node`: pairs of reads, healthy and then
beside the slow node, whose median counts; each read must get the whole log). The parts `failover`
and `chaos` judge the records that a reader gets while nodes are killed, stopped, cut off and slowed
down.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
from collections.abc import Callable

RATIO_MIN = 0.7
"""Share of the throughput with healthy nodes, after the slow node is left out: by the greylist, or
by the rule for nodes that hold everything up, which acts after two seconds and counts in the
figure."""

PAIRS = 5

TRIES = 3
"""One good try is enough: other work of the machine may slow one half of most pairs."""

TIMEOUT_S = 300.0
"""Time limit of one try, which takes half a minute on a quiet machine."""


def run_reads(command: str, say: Callable[[str], None]) -> bool:
    """Read beside a slow node. Returns whether that was quick enough."""
    arguments = [*shlex.split(command), "bench", "read", "--slow-node", "--repeat", str(PAIRS)]
    say(f"\nreads: {shlex.join(arguments)}, at least {RATIO_MIN:g} of healthy")
    for attempt in range(1, TRIES + 1):
        with tempfile.TemporaryDirectory(prefix="cordwood-reads-") as below:
            ratio, problem = _ratio([*arguments, "--json", "--dir", below])
        if problem:
            say(f"reads: FAILED ({problem})")
            return False
        say(f"reads: {ratio:.2f} of healthy ({attempt} of at most {TRIES})")
        if ratio >= RATIO_MIN:
            return True
    say(f"reads: FAILED, below {RATIO_MIN:g} each time")
    return False


def _ratio(arguments: list[str]) -> tuple[float, str]:
    """The figure of a run, or the reason why there is none."""
    try:
        done = subprocess.run(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 0.0, "no end"
    if done.returncode:
        return 0.0, f"exit {done.returncode}"
    (figure,) = json.loads(done.stdout)
    return float(figure["ratio"]), ""
