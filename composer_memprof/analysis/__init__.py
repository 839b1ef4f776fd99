"""From files to numbers, without a GPU, Composer or a running job.

``snapshot`` reads memory snapshots, ``memory`` answers from them, ``flops`` turns counts into rates, ``run`` lists a run.
"""
