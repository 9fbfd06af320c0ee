"""Tests of the news feed handler."""
