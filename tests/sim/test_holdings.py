"""What is told of rot at a run's end, where a log was trimmed past some of it."""

from cordwood.layout.scrub_rows import DamagedRange
from cordwood.sim.holdings import meets, split_trimmed


def test_what_rotted_is_parted_at_the_trim_point():
    """Seed 1000305: an index entry rotted and was trimmed, and the rest of its part of the log,
    of which nothing could be told at the time, stayed unknown, rightly."""
    above, trimmed = split_trimmed([(90, 90), (200, 210)], 205)
    assert above == [(200, 210)]
    assert trimmed == [(90, 90)]
    assert split_trimmed([(90, 90)], 90) == ([], [(90, 90)])


def test_a_damaged_range_is_explained_by_any_rot_within_it():
    damaged = DamagedRange(1, 5, 24, 275)
    assert meets(damaged, [(90, 90)])
    assert meets(damaged, [(275, 280)])
    assert not meets(damaged, [(10, 23), (276, 280)])
    assert not meets(damaged, [])
