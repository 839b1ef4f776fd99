"""Names: of files on this disk and in a store, the addresses of stores, and the suffixes of codecs."""
