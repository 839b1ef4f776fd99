"""What a memory snapshot shows: peak, categories, places in the code, fragmentation, growth, failure, differences."""
