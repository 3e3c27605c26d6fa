"""The parts of the German-English corpus of numbers, dates, clock times and prices."""
