"""Typed errors on the wire: the contents of FAULT and APPEND_FAULTS frames."""

from __future__ import annotations

from msgspec import Struct

from cordwood import errors
from cordwood.errors import CordwoodError, Fenced, Misplaced, NoSequencer, OutOfSequence
from cordwood.layout.message_fields import U32, Name, Sentence, Sequence


class Fault(Struct, frozen=True, tag="fault"):
    """A typed error on its way to the caller.

    Attributes:
        error: name of a class in `errors`.
        epoch: for Fenced, the current epoch.
        node: for NoSequencer, the node to ask instead.
        kind, expected: for OutOfSequence, as its attributes.
    """

    error: Name
    text: Sentence
    epoch: U32 = 0
    node: U32 = 0
    kind: Name = ""
    expected: Sequence | None = None


class AppendFault(Struct, frozen=True):
    """One append entry that was not acknowledged.

    Attributes:
        token: the entry's.
        node: the node to send it to instead, 0 if no node is known.
    """

    token: int
    fault: Fault
    node: U32 = 0


_ERRORS: dict[str, type[CordwoodError]] = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, CordwoodError)
}


def to_fault(error: CordwoodError) -> Fault:
    """An error for the wire; a class that is private to a room is sent as its nearest public
    parent."""
    public = next(kind for kind in type(error).__mro__ if kind.__name__ in _ERRORS)
    epoch = error.epoch if isinstance(error, Fenced) else 0
    node = error.node if isinstance(error, NoSequencer) else 0
    if isinstance(error, OutOfSequence):
        kind = error.kind.value if error.kind is not None else ""
        return Fault(public.__name__, str(error)[:4096], epoch, node, kind, error.expected)
    return Fault(public.__name__, str(error)[:4096], epoch, node)


def to_error(fault: Fault) -> CordwoodError:
    """The error of a fault; with an unknown name, a plain CordwoodError."""
    kind = _ERRORS.get(fault.error, CordwoodError)
    if issubclass(kind, Fenced):
        return kind(fault.text, fault.epoch)
    if issubclass(kind, OutOfSequence):
        # A newer version may have reasons that this version does not know.
        known = fault.kind in Misplaced.__members__.values()
        return kind(fault.text, Misplaced(fault.kind) if known else None, fault.expected)
    return kind(fault.text, fault.node) if kind is NoSequencer else kind(fault.text)
