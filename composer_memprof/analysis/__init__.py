"""From what was recorded to numbers. Knows file formats; needs neither Composer, nor torch, nor a running job."""
