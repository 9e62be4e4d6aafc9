"""The same network and lookups behind other servers, each in a virtual environment of its own: `make bench-peers`."""
