"""Spark: the PySpark data source over the client.

`spark.read.format("cordwood")` finds the source by itself where this package is
installed; `register(spark)` names it to a session that does not look.
`scan_logs(spark, options)` reads main storage by Spark's own Parquet reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cordwood.spark.scan import scan_logs

__all__ = ["register", "scan_logs"]


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


def __getattr__(name: str) -> Any:
    # It loads the client, 0.4 s of a core; most of a query's Python processes never need it.
    if name == "scan_logs":
        from cordwood.spark.scan import scan_logs

        return scan_logs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
