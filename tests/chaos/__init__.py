"""The chaos bench: seeded faults against real processes under load, ended by a ledger of what became of every event."""
