"""Standard input as records: nothing but the LF is taken away."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.cli.lines import LineSplitter, read_lines
from cordwood.errors import RecordTooLarge


def split(chunks: list[bytes], line_bytes_max: int = 1000) -> list[bytes]:
    splitter = LineSplitter(line_bytes_max)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return lines + splitter.finish()


class TestSplitting:
    @pytest.mark.parametrize(
        ("chunks", "lines"),
        [
            ([], []),
            ([b"one\n"], [b"one"]),
            ([b"one"], [b"one"]),
            ([b"a\n\nb\n"], [b"a", b"", b"b"]),
            ([b"dos\r\n"], [b"dos\r"]),
            ([b"\xff\x00\n"], [b"\xff\x00"]),
            ([b"in ", b"three ", b"parts\n"], [b"in three parts"]),
            ([b"ends", b"\n"], [b"ends"]),
        ],
    )
    def test_cases(self, chunks, lines):
        assert split(chunks) == lines

    @given(st.binary(max_size=60).map(lambda b: b.replace(b"a", b"\n")), st.data())
    def test_where_the_chunks_end_changes_nothing(self, text, data):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
        chunks = [
            text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)
        ]
        lines = split(chunks)
        assert lines == split([text])
        assert b"\n".join(lines) == text.removesuffix(b"\n")

    def test_a_line_over_the_limit_is_refused(self):
        assert split([b"x" * 10 + b"\n"], 10) == [b"x" * 10]
        with pytest.raises(RecordTooLarge, match="over 10 bytes"):
            split([b"x" * 11 + b"\n"], 10)

    def test_a_line_without_end_is_refused_before_it_fills_the_memory(self):
        splitter = LineSplitter(10)
        splitter.feed(b"x" * 10)
        with pytest.raises(RecordTooLarge):
            splitter.feed(b"x")


class TestReading:
    def test_what_one_read_brings_is_one_list(self):
        here, there = os.pipe()
        try:
            lines = read_lines(here, 100)
            os.write(there, b"a\nb\nc")
            assert next(lines) == [b"a", b"b"]
            os.write(there, b"\n")
            assert next(lines) == [b"c"]
        finally:
            os.close(there)
        assert list(lines) == []
        os.close(here)

    def test_an_input_that_is_set_not_to_wait_is_waited_for(self):
        """The command ended with "Resource temporarily unavailable"."""
        here, there = os.pipe()
        os.set_blocking(here, False)
        reads = threading.Event()

        def write() -> None:
            reads.wait(60)
            os.write(there, b"a\n")
            os.close(there)

        writing = threading.Thread(target=write)
        writing.start()
        lines = read_lines(here, 100)
        reads.set()
        assert list(lines) == [[b"a"]]
        writing.join()
        os.close(here)
