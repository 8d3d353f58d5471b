"""The fate of a node's packets, by nftables in the node's own network namespace.

Each node has one table, which is set and removed as a whole. Dropped packets are lost without an
error, as when a switch fails; a reset tells both ends. To pass frames through a proxy inside the
namespace, open connections are reset, and new connections are redirected.

Source: nft(8); docs/sources/reliability.md §5.1, §5.2.
"""

from __future__ import annotations

from collections.abc import Iterable

from cordwood.chaos.commands import run, run_beside
from cordwood.chaos.namespaces import Namespaces, namespaces
from cordwood.errors import Unreachable
from cordwood.nodes import NodeId

TABLE = "cordwood"

_IN = "type filter hook input priority 0;"
_OUT = "type filter hook output priority 0;"


def chain(name: str, hook: str, *rules: str) -> str:
    """A chain of a table, as nft reads it."""
    return f"chain {name} {{ {hook} {' '.join(f'{rule};' for rule in rules)} }}"


def deaf() -> str:
    """Nothing reaches the node."""
    return chain("in", _IN, 'iifname "eth0" drop')


def mute() -> str:
    """No packet that the node sends arrives."""
    return chain("out", _OUT, 'oifname "eth0" drop')


def apart(addresses: Iterable[str]) -> str:
    """The node and these addresses do not reach one another."""
    listed = ", ".join(addresses)
    return "\n".join(
        (
            chain("in", _IN, f"ip saddr {{ {listed} }} drop"),
            chain("out", _OUT, f"ip daddr {{ {listed} }} drop"),
        )
    )


def lossy(per_cent: int) -> str:
    """This many of a hundred packets are lost, in each direction."""
    lost = f"numgen random mod 100 < {per_cent} drop"
    return "\n".join(
        (chain("in", _IN, f'iifname "eth0" {lost}'), chain("out", _OUT, f'oifname "eth0" {lost}'))
    )


def resetting() -> str:
    """TCP packets that come in are answered with a reset, and those that leave, too."""
    return "\n".join(
        (
            chain("in", _IN, 'iifname "eth0" meta l4proto tcp reject with tcp reset'),
            chain("out", _OUT, 'oifname "eth0" meta l4proto tcp reject with tcp reset'),
        )
    )


def redirected(port: int, to: int) -> str:
    """New connections from other nodes and clients to `port` arrive at `to`."""
    return chain(
        "pre", "type nat hook prerouting priority -100;",
        f'iifname "eth0" tcp dport {port} redirect to :{to}',
    )  # fmt: skip


class Packets:
    """The tables of the nodes of one cluster."""

    def __init__(self, networks: Namespaces) -> None:
        self._networks = networks

    async def rule(self, node: NodeId, chains: str) -> None:
        """From now on these chains, and no others, apply to the node's packets.

        Raises:
            Unreachable: nft refused; the text quotes it.
        """
        await run_beside(
            *self._networks.command(node), "nft", "-f", "-",
            text=f"table ip {TABLE}\ndelete table ip {TABLE}\ntable ip {TABLE} {{\n{chains}\n}}\n",
        )  # fmt: skip

    async def leave(self, node: NodeId) -> None:
        """Undo `rule`.

        Raises:
            Unreachable: nft refused; the text quotes it.
        """
        await run_beside(
            *self._networks.command(node), "nft", "-f", "-",
            text=f"table ip {TABLE}\ndelete table ip {TABLE}\n",
        )  # fmt: skip

    async def be_late(self, node: NodeId, delay_ms: int) -> None:
        """The node's packets leave later by this time, plus or minus half of it.

        Raises:
            Unreachable: the kernel has no netem.
        """
        words = ("netem", "delay", f"{delay_ms}ms", f"{delay_ms // 2}ms")
        await run_beside(*self._networks.command(node), *_QDISC, "replace", *_ROOT, *words)

    async def be_on_time(self, node: NodeId) -> None:
        """Undo `be_late`.

        Raises:
            Unreachable: there was no delay to undo.
        """
        await run_beside(*self._networks.command(node), *_QDISC, "delete", *_ROOT)


_QDISC = ("tc", "qdisc")
_ROOT = ("dev", "eth0", "root")


def why_no_packets() -> str:
    """Why no packets can be dropped here; "" if they can. Needs namespaces."""
    chains = "\n".join((lossy(50), redirected(1, 2)))
    try:
        with namespaces([NodeId(1)]) as networks:
            run(*networks.command(NodeId(1)), "nft", "-f", "-", text=f"table ip t {{\n{chains}\n}}")
            reset = f"table ip u {{\n{resetting()}\n}}"
            run(*networks.command(NodeId(1)), "nft", "-f", "-", text=reset)
    except Unreachable as error:
        return str(error)
    return ""


def why_no_netem() -> str:
    """Why packets cannot be delayed here; "" if they can. Needs namespaces."""
    try:
        with namespaces([NodeId(1)]) as networks:
            words = (*_QDISC, "replace", *_ROOT, "netem", "delay", "1ms")
            run(*networks.command(NodeId(1)), *words)
    except Unreachable as error:
        return str(error)
    return ""
