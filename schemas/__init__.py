"""Records on the wire and their codecs, frames between scheduler and worker, topic names and settings.

Imports nothing else of Tapewire, so that any consumer of the topics can use it alone.
"""
