"""The one error of data preparation: one line for the user, nothing half-written left behind."""


class PrepError(Exception):
    """The corpus cannot be prepared; the message names the file and the cause."""
