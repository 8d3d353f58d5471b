"""The open read streams of a client, and the frames that belong to them.

A stream has a number, which each frame of a node names. Streams belong to the callers that opened
them, so this holds them weakly: a dropped stream ends by itself, and a late frame of it is ignored.

Source: docs/protocol/read.md.
"""

from __future__ import annotations

from itertools import count
from weakref import WeakValueDictionary

from cordwood.client.blocks import HeldBlock
from cordwood.client.read.read_stream import ReadStream
from cordwood.errors import CordwoodError
from cordwood.layout.frame import Frame, Kind
from cordwood.layout.reading import (
    read_blocks_frame,
    read_gaps,
    read_heads_frame,
    read_reading,
    read_shared_frame,
)
from cordwood.nodes import NodeId
from cordwood.wire.connection import Connection


class OpenStreams:
    """See the module.

    Attributes:
        by_number: the streams.
        kinds: of the frames that belong to streams.
    """

    kinds = frozenset((Kind.BLOCKS, Kind.HEADS, Kind.SHARED, Kind.GAPS, Kind.READING))

    def __init__(self) -> None:
        self.by_number: WeakValueDictionary[int, ReadStream] = WeakValueDictionary()
        self._numbers = count(1)

    def next_number(self) -> int:
        """A number for a stream, 32 bits as in a READ frame."""
        return next(self._numbers) & 0xFFFF_FFFF

    def add(self, stream: ReadStream) -> None:
        """Hand frames with this stream's number to it."""
        self.by_number[stream.number] = stream

    def forget(self, stream: ReadStream) -> None:
        """Ignore frames with this stream's number from now on."""
        self.by_number.pop(stream.number, None)

    def number_anew(self, stream: ReadStream) -> int:
        """Another number for a stream, so that frames of its earlier requests are ignored."""
        self.forget(stream)
        number = self.next_number()
        self.by_number[number] = stream
        return number

    def fail(self, error: CordwoodError) -> None:
        """End all streams with an error."""
        # A copy, here and below: a stream that ends takes itself out.
        for stream in list(self.by_number.values()):
            stream.fail(error)

    def on_statuses(self, is_moved: bool) -> None:
        """See `Cluster.on_statuses`."""
        for stream in list(self.by_number.values()):
            stream.on_statuses(is_moved=is_moved)

    def on_node_up(self, node: NodeId, connection: Connection) -> None:
        """See `cluster.NodeListener`."""
        for stream in list(self.by_number.values()):
            stream.on_node_up(node, connection)

    def on_node_down(self, node: NodeId, connection: Connection) -> None:
        """See `cluster.NodeListener`."""
        for stream in list(self.by_number.values()):
            stream.on_node_down(node, connection)

    def on_node_frame(self, node: NodeId, connection: Connection, frame: Frame) -> None:
        """See `cluster.NodeListener`."""
        if frame.kind in (Kind.BLOCKS, Kind.HEADS):
            read = read_blocks_frame if frame.kind == Kind.BLOCKS else read_heads_frame
            head, blocks = read(frame.payload)
            stream = self.by_number.get(head.stream)
            if stream is not None:
                held = [HeldBlock(node, each) for each in blocks]
                stream.on_blocks(node, connection, head, held)
        elif frame.kind == Kind.SHARED:
            numbers, head, blocks = read_shared_frame(frame.payload)
            held = [HeldBlock(node, each) for each in blocks]
            for number in numbers:
                stream = self.by_number.get(number)
                if stream is not None:
                    stream.on_blocks(node, connection, head, held)
        elif frame.kind == Kind.GAPS:
            number, gaps = read_gaps(frame.payload)
            stream = self.by_number.get(number)
            if stream is not None:
                stream.on_gaps(node, connection, gaps)
        else:
            number, status, _, version, trim = read_reading(frame.payload)
            stream = self.by_number.get(number)
            if stream is not None:
                stream.on_reading(node, connection, status, version, trim)
