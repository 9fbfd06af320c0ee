"""Tests that run several parts together on real services."""
