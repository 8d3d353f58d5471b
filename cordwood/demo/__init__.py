"""The main job, to watch: a cluster, real input, a kill, Spark to Parquet."""
