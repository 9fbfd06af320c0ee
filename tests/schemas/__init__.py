"""Tests of the schemas package."""
