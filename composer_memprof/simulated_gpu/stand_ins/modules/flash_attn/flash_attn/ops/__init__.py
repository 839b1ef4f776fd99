"""Parts of flash-attn: stand-ins on a simulated GPU."""
