"""Analysis of recorded files, without a GPU, Composer or a running job.

``snapshot`` reads memory snapshots, ``memory`` analyzes them, ``flops`` computes rates, ``run`` lists a run's files.
"""
