"""Tables for files: each report as plain text and as a document for JSON or YAML."""
