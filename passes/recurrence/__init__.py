"""What the passes on recurrences share."""
