"""Turns: each client in turn, each client's things in order."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.storage.push.turn_queue import TurnQueue


def popped(queue: TurnQueue[str, int]) -> list[int]:
    return [queue.pop() for _ in range(len(queue))]


def test_one_with_many_things_waits_for_one_with_few() -> None:
    queue = TurnQueue[str, int]()
    for thing in range(100):
        queue.push("many", thing)
    queue.push("few", 100)
    queue.push("few", 101)
    assert [queue.pop() for _ in range(5)] == [0, 100, 1, 101, 2]
    assert len(queue) == 97


def test_what_could_not_be_done_comes_before_its_client_s_other_things() -> None:
    queue = TurnQueue[str, int]()
    for thing in range(4):
        queue.push("a", thing)
    queue.push_back("a", deque([queue.pop(), queue.pop()]))
    assert popped(queue) == [0, 1, 2, 3]


def test_nothing_given_back_is_nothing_to_do() -> None:
    """A node whose client had become writable again with nothing to send stood still."""
    queue = TurnQueue[str, int]()
    queue.push_back("a", deque())
    queue.push("b", 1)
    assert popped(queue) == [1]


def test_an_empty_queue_has_nobody() -> None:
    queue = TurnQueue[str, int]()
    with pytest.raises(LookupError):
        queue.pop()


def test_one_client_may_be_taken_out_with_all_it_wants() -> None:
    queue = TurnQueue[str, int]()
    for client, thing in (("a", 1), ("b", 2), ("a", 3)):
        queue.push(client, thing)
    assert [*queue.take_all("a")] == [1, 3]
    assert [*queue.take_all("a")] == [*queue.take_all("c")] == []
    assert len(queue) == 1
    assert popped(queue) == [2]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_against_a_twin_that_counts_turns(steps) -> None:
    """Nobody is served twice while another waits all the time; each in its own order."""
    queue, waiting = TurnQueue[str, tuple[str, int]](), {name: deque[int]() for name in "abc"}
    order: list[str] = []
    for number, (name, takes) in enumerate(steps):
        if takes and any(waiting.values()):
            client, thing = queue.pop()
            assert client == order.pop(0)
            assert thing == waiting[client].popleft()
            if waiting[client]:
                order.append(client)
        else:
            if not waiting[name]:
                order.append(name)
            waiting[name].append(number)
            queue.push(name, (name, number))
        assert len(queue) == sum(map(len, waiting.values()))
