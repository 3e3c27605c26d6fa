"""The one exception of data preparation. Scripts print its message as one line and stop."""


class PrepError(Exception):
    """The corpus cannot be prepared; the message names the file and the cause."""
