"""Reports as plain text and as JSON, with the head that each begins with."""
