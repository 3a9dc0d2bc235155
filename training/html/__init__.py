"""The frame, style and content policy of self-contained HTML pages."""
