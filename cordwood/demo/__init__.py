"""The main job, to watch: a cluster, real input, two kills, Spark to Parquet."""
