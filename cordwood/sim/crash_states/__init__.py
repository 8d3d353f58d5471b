"""Every legal state of a disk after a crash, and code started from each of them.

- `content`, `disk_log`, `recorder`: the content of a disk, the operations on it, and a `Disk` that
  records them.
- `fates`, `enumerate`: the states that a crash may leave.
- `explorer`: lives of a subject, crashed in every way, and their crashed restarts.
- `wal_subject`, `engine_subject`, `node_subject`, `staging_subject`: the code under test, with its
  promises.
- `prove`: many crash states within a time limit; `planted`: bugs that must be caught.
"""
