"""Names of files on this disk and in a store, addresses of stores, and suffixes of codecs."""
