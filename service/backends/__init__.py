"""What produces tokens. `base` has the seam; each other module is one engine."""
