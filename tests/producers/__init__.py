"""Tests of the producers package."""
