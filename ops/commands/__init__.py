"""The commands of ``tapewire``: flags in, settings made, the work called; each heavy import waits for its command."""
