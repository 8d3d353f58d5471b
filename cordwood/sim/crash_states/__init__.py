"""Every legal state of a disk after a crash, and code started from each of them.

- `content`, `disk_log`, `recorder`: what a disk holds, what was done to it, and a `Disk`
  that writes that down.
- `fates`, `enumerate`: what a crash may leave of it.
- `explorer`: lives of a subject, crashed in every way, and their crashed restarts.
- `wal_subject`, `engine_subject`, `node_subject`: the code under test, with its promises.
- `prove`: many of them within a time; `planted`: bugs that they must catch.
"""
