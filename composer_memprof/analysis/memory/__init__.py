"""Answers from a memory snapshot: peak, categories, places, fragmentation, growth, failure, differences, summary."""
