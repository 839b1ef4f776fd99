"""The commands, by what they are about. None imports torch before it must: each imports what it needs when it runs.

In the help of each command, a line with only ``\\b`` keeps the lines after it as they are.
"""
