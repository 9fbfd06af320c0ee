"""Tests of several real parts together."""
