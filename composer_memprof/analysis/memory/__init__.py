"""The analysis of memory snapshots: peak, categories, places in the code, fragmentation, growth, failure, differences."""
