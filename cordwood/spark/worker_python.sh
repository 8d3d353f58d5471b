#!/bin/sh
# What Spark starts as Python on this machine: the driver's interpreter, without Spark's zips.
#
# Spark puts pyspark.zip in front of PYTHONPATH. Python keeps nothing of what it compiles out of a
# zip, so each of the dozen processes that one query starts compiles PySpark anew, 1.2 s of a slow
# core; the same files lie beside the zip, compiled. Where CORDWOOD_SPARK_PYTHON has no PySpark
# of its own, nobody sets this (`cordwood.spark.session`).
path=
IFS=:
for each in $PYTHONPATH; do
  case $each in
    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
    *) path=${path:+$path:}$each ;;
  esac
done
PYTHONPATH=$path
export PYTHONPATH
# Ctrl-C reaches every process of the terminal. It is the driver's to say what ends: a worker that it
# ends fails its task, of which the JVM tells in 60 lines.
trap '' INT
exec "$CORDWOOD_SPARK_PYTHON" "$@"
