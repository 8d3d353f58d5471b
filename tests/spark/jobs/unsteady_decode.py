"""A decode function that does not say the same of a record each time."""

from __future__ import annotations

import random

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def unsteady(frame: DataFrame) -> DataFrame:
    """As one that asks a service which is away at times."""
    ask = f.udf(lambda: "away" if random.random() < 0.5 else None).asNondeterministic()
    return frame.withColumn("_error", ask())
