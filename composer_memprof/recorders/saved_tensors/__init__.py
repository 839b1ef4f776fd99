"""What autograd saves for backward: the recorder, the hooks it sets, the ledger of storages, and the result."""
