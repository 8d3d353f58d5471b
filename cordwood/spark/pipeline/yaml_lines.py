"""YAML with the line of every value, so that an error can name its line.

A `Reader` takes a mapping apart: code asks for each key once, with its type; keys that no code
asked for are unknown. It never stops at the first mistake: all of them are told at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from cordwood.errors import BadSetting

Value = TypeVar("Value")

MISTAKES_MAX = 20
"""The most mistakes that one error lists. A file with more is probably no pipeline."""


@dataclass(slots=True)
class Mistakes:
    """The errors of a file, each with its line."""

    file: str
    found: list[str] = field(default_factory=list)

    def add(self, node: Node, text: str) -> None:
        """Something at this node is wrong."""
        self.found.append(f"{self.file}:{node.start_mark.line + 1}: {text}")

    def check(self) -> None:
        """Raise BadSetting if there are any."""
        if self.found:
            told = self.found[:MISTAKES_MAX]
            more = len(self.found) - len(told)
            raise BadSetting("\n".join([*told, *([f"and {more} more"] if more else [])]))


class Reader:
    """One mapping of the file.

    Attributes:
        node: where it is.
        path: of keys that lead here, for errors: `sinks[0].`.
    """

    def __init__(self, node: Node, path: str, mistakes: Mistakes) -> None:
        self.node = node
        self.path = path
        self._mistakes = mistakes
        self._entries: dict[str, tuple[Node, Node]] = {}
        self._asked: list[str] = []
        if not isinstance(node, MappingNode):
            self.wrong(node, f"{path.rstrip('.') or 'the file'} is a mapping: keys with values")
            return
        for key, value in node.value:
            name = str(key.value)
            if name in self._entries:
                self.wrong(key, f"{path}{name} is given twice")
            self._entries[name] = (key, value)

    def wrong(self, node: Node, text: str) -> None:
        """Note a mistake."""
        self._mistakes.add(node, text)

    def value(self, key: str) -> Node | None:
        """The value of a key; None if it is not there."""
        self._asked.append(key)
        found = self._entries.get(key)
        return None if found is None else found[1]

    def text(self, key: str, default: str | None = None) -> str:
        """A scalar as text; without a default it must be there."""
        node = self.value(key)
        if node is None:
            if default is None:
                self.wrong(self.node, f"{self.path}{key} is missing")
            return default or ""
        if not isinstance(node, ScalarNode):
            self.wrong(node, f"{self.path}{key} is one value")
            return default or ""
        return str(node.value)

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """A list of scalars, or one alone."""
        node = self.value(key)
        if node is None:
            return default
        nodes = node.value if isinstance(node, SequenceNode) else [node]
        if not all(isinstance(each, ScalarNode) for each in nodes):
            self.wrong(node, f"{self.path}{key} is a value, or a list of values")
            return default
        return tuple(str(each.value) for each in nodes)

    def readers(self, key: str) -> list[Reader]:
        """A list of mappings, which has one at least."""
        node = self.value(key)
        if not isinstance(node, SequenceNode) or not node.value:
            at = self.node if node is None else node
            self.wrong(at, f"{self.path}{key} is a list of mappings, with one at least")
            return []
        return [
            Reader(each, f"{self.path}{key}[{index}].", self._mistakes)
            for index, each in enumerate(node.value)
        ]

    def reader(self, key: str) -> Reader | None:
        """A mapping, which must be there."""
        node = self.value(key)
        if node is None:
            self.wrong(self.node, f"{self.path}{key} is missing")
            return None
        return Reader(node, f"{self.path}{key}.", self._mistakes)

    def made(self, make: Callable[[], Value]) -> Value | None:
        """The result of `make`. If it raises a mistake, the mistake belongs to this mapping."""
        try:
            return make()
        except BadSetting as error:
            self.wrong(self.node, str(error))
            return None

    def done(self) -> None:
        """Report the keys that no code asked for."""
        for name, (key, _) in self._entries.items():
            if name not in self._asked:
                near = difflib.get_close_matches(name, self._asked, n=1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                self.wrong(
                    key, f"there is no {self.path}{name}{hint}; there is {', '.join(self._asked)}"
                )


def read_yaml(text: str, mistakes: Mistakes) -> Reader | None:
    """The top of a file; None, with a mistake noted, if it is no YAML."""
    line, wrong = 1, "the file is empty"
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None:
            return Reader(node, "", mistakes)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        wrong = str(error.problem or error.context)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        wrong = f"the character U+{error.character:04X} may not stand in YAML"
    except RecursionError:
        wrong = "the file is nested too deep"
    mistakes.found.append(f"{mistakes.file}:{line}: {wrong}")
    return None
