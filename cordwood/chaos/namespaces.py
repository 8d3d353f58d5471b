"""A separate network for each node of a local cluster, so that a node can be cut off from all
others.

Each node has a network namespace, and a bridge joins them. The nodes have their own addresses, and
the machine's address is on the bridge, from where clients reach the nodes. To cut a node off, its
end of the bridge is taken down. Packets are then lost in both directions, without an error, as when
a switch fails. This needs root, `ip` and a kernel that allows namespaces.

Source: ip-netns(8), veth(4).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from cordwood.errors import Unreachable
from cordwood.nodes import NodeId

COMMAND_TIMEOUT_S = 10.0
"""A call of `ip` takes milliseconds."""

NODES_MAX = 200
"""Addresses of one bridge: a /24 with room for the machine's own."""

IDENTITIES = 250
"""Clusters on one machine: each has a /24 of 10.213.0.0/16."""

TAKEN = "File exists"
"""The error of `ip` for an existing name; its maker may be at work or long dead."""


class Namespaces:
    """See the module. Made by `namespaces`.

    Attributes:
        id: makes names and addresses that no other cluster on this machine has, from `make` on.
    """

    def __init__(self) -> None:
        self.id = os.getpid() % IDENTITIES
        self._is_mine = False
        self._made: list[NodeId] = []

    def host(self, node: NodeId) -> str:
        """The node's address."""
        return f"10.213.{self.id}.{10 + node}"

    def command(self, node: NodeId) -> list[str]:
        """The prefix of a command that must run on the node's network."""
        return ["ip", "netns", "exec", self._namespace(node)]

    def cut(self, node: NodeId) -> None:
        """Cut the node off: from now on no packet reaches it, and its packets do not arrive."""
        _ip("link", "set", self._port(node), "down")

    def mend(self, node: NodeId) -> None:
        """Undo `cut`."""
        _ip("link", "set", self._port(node), "up")

    def make(self, nodes: Iterable[NodeId]) -> None:
        """Make the bridge and each node's network.

        Raises:
            Unreachable: this machine does not let one be made.
        """
        self._claim()
        _ip("address", "add", f"10.213.{self.id}.1/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for node in nodes:
            assert node <= NODES_MAX, "a bridge has so many addresses"
            name, port = self._namespace(node), self._port(node)
            self._made.append(node)
            self._remove_node(node)  # a run with this identity may have died while it ended
            _ip("netns", "add", name)
            _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", port, "master", self._bridge, "up")
            for words in (
                ("address", "add", f"{self.host(node)}/24", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
                ("link", "set", "lo", "up"),
            ):
                _ip("-n", name, *words)

    def _claim(self) -> None:
        """Find a free identity, and make its bridge: if two runs try to make a bridge of the same
        name, only one succeeds."""
        first = self.id
        for tried in range(IDENTITIES):
            self.id = (first + tried) % IDENTITIES
            try:
                _ip("link", "add", self._bridge, "type", "bridge")
            except Unreachable as error:
                if TAKEN not in str(error):
                    raise
            else:
                self._is_mine = True
                return
        raise Unreachable(
            f"all {IDENTITIES} networks for clusters are taken: `ip link` shows the bridges cwb0 "
            "and so on; those of runs that were killed can be deleted (ip link delete cwb0)"
        )

    def remove(self) -> None:
        """Remove everything again; missing parts are no error."""
        if not self._is_mine:
            return
        for node in self._made:
            self._remove_node(node)
        with suppress(Unreachable):
            _ip("link", "delete", self._bridge)

    def _remove_node(self, node: NodeId) -> None:
        with suppress(Unreachable):
            _ip("link", "delete", self._port(node))
        with suppress(Unreachable):
            _ip("netns", "delete", self._namespace(node))

    @property
    def _bridge(self) -> str:
        return f"cwb{self.id}"

    def _namespace(self, node: NodeId) -> str:
        return f"cordwood-{self.id}-{node}"

    def _port(self, node: NodeId) -> str:
        return f"cw{self.id}n{node}"


@contextmanager
def namespaces(nodes: Sequence[NodeId]) -> Iterator[Namespaces]:
    """Networks for these nodes, for the length of the block.

    Raises:
        Unreachable: this machine does not let one be made; see `why_not`.
    """
    made = Namespaces()
    try:
        made.make(nodes)
        yield made
    finally:
        made.remove()


def why_not() -> str:
    """Why no namespaces can be made here; "" if they can."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    if shutil.which("ip") is None:
        return "`ip` (iproute2) is not installed"
    try:
        with namespaces([NodeId(1)]):
            return ""
    except Unreachable as error:
        return str(error)


def _ip(*words: str) -> None:
    """Run `ip`.

    Raises:
        Unreachable: it failed; the text quotes it.
    """
    try:
        done = subprocess.run(
            ["ip", *words], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreachable(f"ip {' '.join(words)}: {error}") from error
    if done.returncode:
        raise Unreachable(f"ip {' '.join(words)}: {done.stderr.strip()}")
