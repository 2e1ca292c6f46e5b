"""What a stream costs in memory while nothing happens on it, and while nobody reads it.

cases    what is opened, and how it is read                   pure
held     connections whose streams are held open
run      the processes, and their memory around each case
section  the figures, and which of them are as promised
"""
