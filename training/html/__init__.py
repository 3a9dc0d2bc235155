"""The frame, style and Content-Security-Policy of self-contained HTML pages."""
