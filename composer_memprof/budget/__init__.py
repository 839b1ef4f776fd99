"""Budgets: what a run's memory may come to, held on a simulated GPU against the figures of an earlier run."""
