"""Ids of records in a header."""

from __future__ import annotations

import random

from cordwood.sim.history import mark_payload
from cordwood.sim.payload import make_payload
from cordwood.sim.record_id import ID_HEADER, id_header, mark_record, without_id


class TestMarks:
    def test_the_header_names_a_record_whose_payload_says_nothing(self):
        mark = mark_record(b"paid", [("a", None), id_header("shop/7"), ("b", b"1")])
        assert mark.id == "shop/7"
        assert (mark.crc, mark.length) == (mark_payload(b"paid").crc, 4)

    def test_two_records_of_equal_bytes_differ_by_their_ids(self):
        one, other = (mark_record(b"same", [id_header(f"shop/{n}")]) for n in (1, 2))
        assert one != other

    def test_without_the_header_the_payload_is_asked(self):
        payload = make_payload("w", 3, 64, random.Random(1))
        assert mark_record(payload, ()) == mark_payload(payload)
        assert mark_record(b"nobody's", [("a", b"1"), (ID_HEADER, None)]).id is None

    def test_a_header_that_is_no_text_is_an_id_that_nobody_gave(self):
        assert "\ufffd" in (mark_record(b"x", [(ID_HEADER, b"\xff")]).id or "")

    def test_the_application_sees_its_own_headers_only(self):
        own = (("a", None), ("b", b"1"))
        assert without_id([own[0], id_header("shop/7"), own[1]]) == own
