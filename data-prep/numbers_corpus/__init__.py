"""Generate German-English sentences with numbers, dates, clock times and prices."""
