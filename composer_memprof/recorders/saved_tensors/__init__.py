"""What autograd saves for backward: the recorder, the ledger of storages, and pack and unpack functions."""
