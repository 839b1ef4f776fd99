"""When a callback records: the windows of each stage, and who may record at the same time."""
