"""The one error a user sees for bad input: one line on stderr, exit status 1, nothing written."""


class UsageError(SystemExit):
    """Bad input at the command line or in a configuration.

    A ``SystemExit`` because fairseq wraps model loading in ``except Exception`` and would bury the
    cause under its own traceback; this passes through and ends the command with one line.
    """

    def __init__(self, message: str) -> None:
        super().__init__(f"fairseq_stochattn: {' '.join(message.split())}")
