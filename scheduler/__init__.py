"""Intake, classification, class queues, budgets, planner, ledger, dispatch, publishing and stamps."""
