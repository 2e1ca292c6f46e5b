"""Events of generations that outlive their reader: how long, how much, and the log that holds them."""
