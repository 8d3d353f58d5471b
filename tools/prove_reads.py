"""What of a proof reads beside a grey failure: how fast a reader still is.

One of five real nodes is stopped for all but 5 ms of each half second: it is there, it answers,
and it is of no use. A reader must notice, have others send in its place, and keep RATIO_MIN of
what it gets from healthy nodes (`cordwood bench read --slow-node`: pairs of reads, healthy and
then beside the slow node, whose median counts; each must be given the whole log). What a reader
is given while nodes are killed, stopped, cut off and slowed down is judged by the parts
`failover` and `chaos`.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
from collections.abc import Callable

RATIO_MIN = 0.7
"""Of the throughput with all nodes healthy, once the slow one is left out: by the greylist, or by
the rule for nodes that hold everything up, which takes two seconds and has it too."""

PAIRS = 5

TRIES = 3
"""One is enough: what else the machine does may fall on one half of most pairs, and only slows."""

TIMEOUT_S = 300.0
"""Of one try, which takes half a minute on a quiet machine."""


def run_reads(command: str, say: Callable[[str], None]) -> bool:
    """Read beside a slow node; whether that was quick enough."""
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
    """What a run measured, or why it did not."""
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
