"""Checks that a run can be exported."""
