"""Receptions of radio frames: read, judge, report."""
