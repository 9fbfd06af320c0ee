"""Tests of the EDGAR feed."""
