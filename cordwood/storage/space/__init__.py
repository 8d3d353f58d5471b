"""Free space: retention, the sizes of logs, and full disks."""
