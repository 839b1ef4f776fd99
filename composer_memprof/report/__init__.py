"""What people read: ``html`` makes self-contained pages, ``text`` makes tables for terminals and text files."""
