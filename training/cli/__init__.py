"""Command line: parser, TOML files, option bounds, exceptions and exit codes."""
