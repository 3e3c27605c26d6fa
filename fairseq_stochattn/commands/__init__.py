"""The ``stochattn-*`` commands, one file per command; command.py describes what they share."""
