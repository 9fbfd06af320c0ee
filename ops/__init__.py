"""The ``tapewire`` command and what operators need around the service."""
