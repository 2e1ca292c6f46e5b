"""What it costs to retain generations: in memory, in a store that replicas share, and for a second reader."""
