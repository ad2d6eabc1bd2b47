from hypothesis import given, settings
from hypothesis import strategies as st

from onefold import ChainDetector
from onefold.spark.gaps import LOWER, UPPER, missing_ranges
from tests.lib.examples import examples

SCHEMA = (
    "stream string, partition int, publisher string, chain string, "
    "timestamp long, sequence long, previous_timestamp long, previous_sequence long"
)


def rows_of(chain, messages):
    for previous, number in messages:
        yield ("s", 0, "p", chain, *number, *(previous or (None, None)))


def found(spark, firsts, floor):
    table = missing_ranges(spark.createDataFrame(firsts, SCHEMA), floor=floor).collect()
    ends = [(row["chain"], tuple(row[n] for n in LOWER), tuple(row[n] for n in UPPER)) for row in table]
    return sorted(ends, key=str)


@settings(max_examples=examples(12), deadline=None)
@given(st.data(), st.sampled_from(["first", "open"]))
def test_the_ranges_are_the_gaps_that_the_detector_ends_with(spark, data, floor):
    firsts, expected = [], []
    for chain in ("a", "b", "c"):
        numbers = [(n, n % 2) for n in sorted(data.draw(st.sets(st.integers(0, 40), min_size=1)))]
        messages = list(zip([None, *numbers], numbers, strict=False))
        detector = ChainDetector(floor=floor)
        arrived = data.draw(st.lists(st.sampled_from(messages), max_size=40))
        counted = [message for message in arrived if detector.judge(*message).verdict == "FIRST"]
        firsts += rows_of(chain, counted)
        ranges = [gap for gap in detector.gaps() if gap[1] is not None]
        if floor == "open" and ranges and not (detector.missing() and detector.missing()[0][0] == (0, 0)):
            ranges = ranges[1:]  # below the first message nothing is known to exist
        expected += [(chain, (None, None) if lower == (-1, -1) else lower, upper) for lower, upper in ranges]
    assert found(spark, firsts, floor) == sorted(expected, key=str)
