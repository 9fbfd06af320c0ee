"""Tests, mirroring the packages; integration, end to end and fault tests in folders of their own."""
