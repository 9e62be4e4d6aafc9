"""What other servers' own tests and texts expect, asked of a live server; each miss is named with its reason."""
