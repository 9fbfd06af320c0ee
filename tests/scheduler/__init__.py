"""Tests of the scheduler, one module for each of its modules."""
