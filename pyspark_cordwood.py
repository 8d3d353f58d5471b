"""The name that Spark looks for: `pyspark_*` modules with a `DefaultSource`.

At the first use of a format that it does not know, Spark imports every installed module
whose name begins with `pyspark_` and registers its `DefaultSource`. That makes
`format("cordwood")` work without a jar and without a call. Nothing else belongs here: a
module that fails to import switches this off for all of its kind.

Source: pyspark/sql/worker/lookup_data_sources.py.
"""

from cordwood.spark.source import CordwoodSource as DefaultSource

__all__ = ["DefaultSource"]
