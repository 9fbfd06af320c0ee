"""``python -m ops`` is the ``tapewire`` command."""

from ops.cli import main

if __name__ == "__main__":
    main()
