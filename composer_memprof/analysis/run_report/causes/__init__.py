"""Why a run was slow or ran out of memory."""
