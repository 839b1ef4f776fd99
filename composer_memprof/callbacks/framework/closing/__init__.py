"""How a run ends: broken fits, the closes of all callbacks, and the line that says what was written."""
