"""Spark: the PySpark data source over the client.

`spark.read.format("cordwood")` finds the source by itself where this package is
installed; `register(spark)` names it to a session that does not look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("cordwood")` known to a session; doing it twice is fine.

    Raises:
        BadSetting: the session's workers are of this machine, and their Python lacks this package.
    """
    from pyspark.errors import AnalysisException

    from cordwood.spark.session import check_worker_python
    from cordwood.spark.source import CordwoodSource

    # A session of Spark Connect has no context here, and its workers are elsewhere.
    if hasattr(spark, "sparkContext") and str(spark.sparkContext.master).startswith("local"):
        check_worker_python(str(spark.sparkContext.pythonExec))

    try:
        spark.dataSource.register(CordwoodSource)
    except AnalysisException as error:
        # Spark refuses a source that it already found by itself; it is the same source.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
