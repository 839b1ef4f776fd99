"""What a whole run says: the files of all its ranks in, one report out. The terminal and the page show it."""
